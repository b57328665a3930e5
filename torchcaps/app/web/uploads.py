"""A picture file from anybody to the pixels a model takes."""

import io
import warnings

from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor

from torchcaps.app.web.errors import Refused
from torchcaps.data.readers.pictures import SMALLEST, to_pixels

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
MOST_PIXELS = 16_000_000


def read_picture(content: bytes, image: tuple[int, int, int], handwritten: bool) -> Float[Tensor, "c h w"]:
    """The first frame, upright and on white paper. The size is known, and refused, before anything is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = Image.open(io.BytesIO(content), formats=FORMATS)
            _check_size(picture.size)
            picture.load()
            picture = ImageOps.exif_transpose(picture)
            if picture.has_transparency_data:
                paper = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(paper, picture.convert("RGBA"))
            return to_pixels(picture, image, handwritten)
    except Refused:
        raise
    except Exception:
        # Decoders raise whatever a broken file makes them trip over, so that no list of exceptions would be complete.
        raise Refused(422, "this file cannot be read as a picture; PNG, JPEG, GIF, WebP and BMP can") from None


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if min(size) < SMALLEST:
        raise Refused(422, f"the picture is too small: at least {SMALLEST}x{SMALLEST} pixels are needed")
    if width * height > MOST_PIXELS:
        raise Refused(422, f"the picture is too large: at most {MOST_PIXELS // 1_000_000} million pixels are read")
