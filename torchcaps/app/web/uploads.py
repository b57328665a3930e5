"""An uploaded picture file to the pixels a model takes."""

import warnings

from jaxtyping import Float
from torch import Tensor

from torchcaps.app.web.errors import Refused
from torchcaps.core.errors import UserError
from torchcaps.data.readers.pictures import open_image, to_pixels

MOST_PIXELS = 16_000_000


def read_picture(content: bytes, image: tuple[int, int, int], handwritten: bool) -> Float[Tensor, "c h w"]:
    """The first frame, upright and on white paper. The size is known, and refused, before anything is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return to_pixels(open_image(content, most=MOST_PIXELS), image, handwritten)
    except UserError as error:
        raise Refused(422, str(error)) from None
