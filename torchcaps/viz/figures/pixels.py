"""Small pictures as PNG files, a pixel a pixel: the page decides how large they are shown."""

import io

import matplotlib
import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from torchcaps.viz.figures.style import Pixels, rgb

LARGEST = 400
GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def png(pixels: Pixels) -> bytes:
    return _encode(Image.fromarray((np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)))


def thumbnail(picture: Image.Image) -> bytes:
    """A picture file as it was, made small enough for a page; nothing else that was in the file comes along."""
    small = picture.convert("L" if picture.mode[0] in "IF" else "RGB")
    small.thumbnail((LARGEST, LARGEST))
    return _encode(small)


def _encode(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    Image.frombytes(picture.mode, picture.size, picture.tobytes()).save(file, format="PNG")
    return file.getvalue()


def heated(picture: Float[Tensor, "c h w"], heat: Float[Tensor, "h w"], least: float, most: float) -> Pixels:
    """The picture in dim grey, glowing from the `least` heat to the `most`."""
    grey = 0.75 * (rgb(picture) @ GREY)[..., None]
    share = np.clip((heat.numpy() - least) / max(most - least, 1e-30), 0, 1)
    glow = matplotlib.colormaps["inferno"](0.25 + 0.7 * share)[..., :3]
    weight = (0.8 * share**1.5)[..., None]
    return (grey * (1 - weight) + glow * weight).astype(np.float32)
