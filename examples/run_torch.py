"""Run an exported program with torch alone, without torchcaps.

    torchcaps export capsnet-mnist-small --format torch --out digits.pt2
    python run_torch.py digits.pt2 digit.png ...          (needs torch, pillow and numpy)

Pictures are taken as they are, resized to what the network sees; `run_onnx.py` shows how scans of digits are prepared.
"""

import json
import sys

import numpy as np
import torch
from PIL import Image, ImageOps


def prepare(path, c, h, w):
    """Upright, on white paper, at the size the network takes."""
    with Image.open(path) as file:
        picture = ImageOps.exif_transpose(file)
    if picture.has_transparency_data:
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    picture = picture.convert("L" if c == 1 else "RGB")
    return picture.resize((w, h), Image.Resampling.BILINEAR, reducing_gap=3.0)


def main(program, *paths):
    extra = {"torchcaps.json": ""}
    model = torch.export.load(program, extra_files=extra).module()
    record = json.loads(extra["torchcaps.json"])
    c, h, w = record["image"]
    pictures = [prepare(path, c, h, w) for path in paths]
    pixels = torch.from_numpy(np.stack(pictures)).float() / 255
    images = pixels[:, None] if c == 1 else pixels.permute(0, 3, 1, 2)
    with torch.no_grad():
        lengths = model(images)["lengths"]
    for path, row in zip(paths, lengths, strict=True):
        longest = row.topk(record["answers"]).indices.tolist()
        found = [f"{record['classes'][k]} ({row[k]:.4f})" for k in longest if row[k] >= record["threshold"]]
        print(f"{path}: {' and '.join(found) or 'none of these'}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
