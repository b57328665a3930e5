"""Any picture file to the pixels a model takes."""

import io
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.core.files import open_regular

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jfif", ".webp", ".tif", ".tiff", ".bmp", ".gif"})
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")
"""Whatever a file is called: Pillow knows others, and hands some of them to other programs."""
SMALLEST = 4
MOST_PIXELS = 2**26
"""Decoded at once; a small file that unpacks to more would take the machine's memory."""
DIGIT_BOX, DIGIT_CANVAS = 20, 28


def open_image(source: str | Path | bytes, at_least: int | None = None, most: int = MOST_PIXELS) -> Image.Image:
    """Decoded, upright, of eight bits, without an alpha channel; the first frame of an animation.

    Where `at_least` so many pixels a side are enough, a large JPEG is decoded at a half, quarter or eighth of its size.
    The only place that opens pictures from anybody: their size is checked before they are decoded.
    """
    name = "the picture" if isinstance(source, bytes) else source
    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)
        with opened, Image.open(opened, formats=FORMATS) as file:
            if at_least is not None:
                file.draft(None, (at_least, at_least))
            _check_size(name, file.size, most)
            file.load()
            picture = _eight_bits(file)
            with suppress(Exception):  # damaged EXIF data: the picture is taken as it lies
                picture = ImageOps.exif_transpose(picture)
            if picture.has_transparency_data:
                white = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(white, picture.convert("RGBA"))
            # Pillow cannot convert Lab to grey.
            picture = picture.convert("RGB") if picture.mode == "LAB" else picture
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{name} does not exist") from None
    except UnidentifiedImageError:
        raise UserError(f"{name} is not an image that can be read; PNG and JPEG can") from None
    except Exception as error:
        # A damaged file can make a decoder raise anything, so no list of exceptions would be complete. Whoever sent
        # the bytes of a picture over the network is not told what happened inside.
        detail = "" if isinstance(source, bytes) else f": {' '.join(str(error).split())}"
        raise UserError(f"{name} cannot be read as an image{detail}") from None
    return picture


def _check_size(name: str | Path, size: tuple[int, int], most: int) -> None:
    width, height = size
    if min(size) < SMALLEST:
        raise UserError(f"{name} has {width}x{height} pixels; at least {SMALLEST}x{SMALLEST} are needed")
    if width * height > most:
        raise UserError(f"{name} has {width}x{height} pixels; at most {most // 10**6} million are read")


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Deep greys scaled down, which Pillow would cut off at 255.

    Files do not say how many of their 16 bits are used, so the values do: 8, 12 (as sensors have) or 16. Floats are
    taken as shares if none is above 1; anything else is stretched from its lowest value to its highest.
    """
    if picture.mode != "F" and not picture.mode.startswith("I"):
        return picture
    values = np.nan_to_num(np.asarray(picture, dtype=np.float32))
    low, high = float(values.min()), float(values.max())
    tops = (1.0, 255.0, 4095.0, 65535.0) if picture.mode == "F" else (255.0, 4095.0, 65535.0)
    top = next((top for top in tops if high <= top), None)
    if low < 0 or top is None:
        values, top = values - low, max(high - low, 1e-6)
    scaled = Image.fromarray((values * (255 / top)).round().astype(np.uint8))
    scaled.info.update({key: value for key, value in picture.info.items() if key == "exif"})
    return scaled


def read_bytes(path: str | Path, image: tuple[int, int, int], handwritten: bool = False) -> UInt8[np.ndarray, "c h w"]:
    """A picture file as the bytes that a model of such images is trained on."""
    return to_bytes(open_image(path, at_least=2 * max(image[1:])), image, handwritten)


def read_pixels(path: str | Path, image: tuple[int, int, int], handwritten: bool = False) -> Float[Tensor, "c h w"]:
    """The same in [0, 1], as a model is given it."""
    return torch.from_numpy(read_bytes(path, image, handwritten).astype(np.float32) / 255)


def to_pixels(picture: Image.Image, image: tuple[int, int, int], handwritten: bool) -> Float[Tensor, "c h w"]:
    """Pixels in [0, 1] of the size and number of channels that a model takes."""
    return torch.from_numpy(to_bytes(picture, image, handwritten).astype(np.float32) / 255)


def to_bytes(picture: Image.Image, image: tuple[int, int, int], handwritten: bool) -> UInt8[np.ndarray, "c h w"]:
    """The whole picture at the size and number of channels that a model takes.

    For models of handwritten digits, dark ink on light paper is noticed and inverted, and a picture that is not already
    of the model's size is prepared as MNIST was: the ink in a box of 20 pixels, its centre of mass in the middle. For
    models of two channels, which see stereo pairs, the file has both pictures side by side, or one for both cameras.
    """
    c, h, w = image
    if c == 2:
        return np.concatenate([to_bytes(half, (1, h, w), handwritten) for half in _stereo(picture)])
    if c not in (1, 3):
        raise UserError(f"this model takes images of {c} channels, which picture files do not have")
    picture = _eight_bits(picture).convert("L" if c == 1 else "RGB")
    if handwritten and c == 1:
        picture = _light_on_dark(picture)
        if picture.size not in ((w, h), (DIGIT_CANVAS, DIGIT_CANVAS)):
            picture = _centre_digit(picture)
        if picture.size != (w, h) and picture.width <= w and picture.height <= h:
            canvas = Image.new("L", (w, h))
            canvas.paste(picture, ((w - picture.width) // 2, (h - picture.height) // 2))
            picture = canvas
    if picture.size != (w, h):
        picture = picture.resize((w, h), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = np.asarray(picture)
    return pixels[None] if c == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _stereo(picture: Image.Image) -> tuple[Image.Image, Image.Image]:
    """A picture that is at least 1.5 times as wide as it is high is taken for two, side by side."""
    width, height = picture.size
    if 2 * width < 3 * height:
        return picture, picture
    half = width // 2
    return picture.crop((0, 0, half, height)), picture.crop((width - half, 0, width, height))


def _light_on_dark(picture: Image.Image) -> Image.Image:
    """Scans are dark on light, MNIST is light on dark: the rim tells."""
    pixels = np.asarray(picture)
    rim = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return ImageOps.invert(picture) if np.median(rim) > 127 else picture


def _centre_digit(picture: Image.Image) -> Image.Image:
    picture = ImageOps.autocontrast(picture)
    box = Image.fromarray(np.asarray(picture) > 64).getbbox()
    if box is None:
        return picture
    ink = picture.crop(box)
    scale = DIGIT_BOX / max(ink.size)
    size = (max(1, round(ink.width * scale)), max(1, round(ink.height * scale)))
    ink = ink.resize(size, Image.Resampling.LANCZOS)
    mass = np.asarray(ink, dtype=np.float64)
    total = mass.sum() or 1.0
    y = (mass.sum(1) * np.arange(mass.shape[0])).sum() / total
    x = (mass.sum(0) * np.arange(mass.shape[1])).sum() / total
    canvas = Image.new("L", (DIGIT_CANVAS, DIGIT_CANVAS))
    middle = (DIGIT_CANVAS - 1) / 2
    canvas.paste(ink, (round(middle - x), round(middle - y)))
    return canvas
