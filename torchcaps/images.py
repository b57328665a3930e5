"""Any picture file to the pixels a model takes."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from torchcaps.errors import UserError

SMALLEST = 4
DIGIT_BOX, DIGIT_CANVAS = 20, 28


def open_image(path: str | Path) -> Image.Image:
    """Decoded in full, upright, without an alpha channel; the first frame of an animation."""
    try:
        with Image.open(path) as file:
            file.load()
            picture = ImageOps.exif_transpose(file)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except UnidentifiedImageError:
        raise UserError(f"{path} is not an image that can be read; PNG and JPEG can") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as an image: {error}") from None
    if min(picture.size) < SMALLEST:
        raise UserError(
            f"{path} has {picture.width}x{picture.height} pixels; at least {SMALLEST}x{SMALLEST} are needed"
        )
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return picture


def to_pixels(picture: Image.Image, image: tuple[int, int, int], digits: bool) -> Float[Tensor, "c h w"]:
    """Pixels in [0, 1] of the size and number of channels that a model takes.

    For models of handwritten digits, dark ink on light paper is noticed and inverted, and a picture that is not already
    of the model's size is prepared as MNIST was: the ink in a box of 20 pixels, its centre of mass in the middle.
    """
    c, h, w = image
    if c not in (1, 3):
        raise UserError(f"this model takes images of {c} channels, which picture files do not have")
    picture = picture.convert("L" if c == 1 else "RGB")
    if digits and c == 1:
        picture = _light_on_dark(picture)
        if picture.size not in ((w, h), (DIGIT_CANVAS, DIGIT_CANVAS)):
            picture = _centre_digit(picture)
        if picture.size != (w, h) and picture.width <= w and picture.height <= h:
            canvas = Image.new("L", (w, h))
            canvas.paste(picture, ((w - picture.width) // 2, (h - picture.height) // 2))
            picture = canvas
    if picture.size != (w, h):
        picture = picture.resize((w, h), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)
    return pixels[None] if c == 1 else pixels.permute(2, 0, 1)


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
