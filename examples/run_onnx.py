"""Classify pictures with an exported model, without torchcaps and without torch.

torchcaps export capsnet-mnist-small --out digits.onnx
python run_onnx.py digits.onnx digit.png ...          (needs onnxruntime, pillow and numpy)
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def prepare(path, record):
    """The picture as the network was trained on it; the file says how."""
    c, h, w = record["image"]
    with Image.open(path) as file:
        file.draft(None, (2 * max(h, w), 2 * max(h, w)))
        picture = ImageOps.exif_transpose(file)
    if picture.mode.startswith("I"):  # 16 bits of grey, of which files do not say how many are used: the values do
        values = np.asarray(picture, dtype=np.float32)
        top = next(top for top in (255, 4095, 65535, np.inf) if values.max() <= top)
        picture = Image.fromarray((values * (255 / top)).round().astype(np.uint8))
    if picture.has_transparency_data:
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    picture = picture.convert("L" if c == 1 else "RGB")
    if record["preparation"] == "digit":
        picture = as_mnist(picture, w, h)
    if picture.size != (w, h):
        picture = picture.resize((w, h), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = np.asarray(picture, dtype=np.float32) / 255
    return pixels[None] if c == 1 else pixels.transpose(2, 0, 1)


def as_mnist(picture, w, h):
    """Light ink on dark; unless it has the right size already, in a box of 20 pixels, its mass in the middle of 28."""
    pixels = np.asarray(picture)
    if np.median(np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])) > 127:
        picture = ImageOps.invert(picture)
    if picture.size not in ((w, h), (28, 28)):
        picture = ImageOps.autocontrast(picture)
        box = Image.fromarray(np.asarray(picture) > 64).getbbox()
        if box is not None:
            ink = picture.crop(box)
            scale = 20 / max(ink.size)
            size = (max(1, round(ink.width * scale)), max(1, round(ink.height * scale)))
            ink = ink.resize(size, Image.Resampling.LANCZOS)
            mass = np.asarray(ink, dtype=np.float64)
            y, x = ((mass.sum(1 - axis) @ np.arange(mass.shape[axis])) / (mass.sum() or 1) for axis in (0, 1))
            picture = Image.new("L", (28, 28))
            picture.paste(ink, (round(13.5 - x), round(13.5 - y)))
    if picture.size != (w, h) and picture.width <= w and picture.height <= h:
        canvas = Image.new("L", (w, h))
        canvas.paste(picture, ((w - picture.width) // 2, (h - picture.height) // 2))
        picture = canvas
    return picture


def main(model, *paths):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    record = json.loads(session.get_modelmeta().custom_metadata_map["torchcaps"])
    images = np.stack([prepare(path, record) for path in paths])
    (lengths,) = session.run(["lengths"], {"images": images})
    for path, row in zip(paths, lengths, strict=True):
        longest = np.argsort(-row)[: record["answers"]]
        found = [f"{record['classes'][k]} ({row[k]:.4f})" for k in longest if row[k] >= record["threshold"]]
        print(f"{path}: {' and '.join(found) or 'none of these'}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
