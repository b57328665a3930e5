"""Untrusted JSON and picture files to tensors of the right shape, or one sentence that says what is wrong."""

import base64
import binascii
import json
import warnings
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.app.web.limits import Refused
from torchcaps.core.errors import UserError
from torchcaps.data.readers.pictures import open_image, to_pixels
from torchcaps.models.window import Window

MOST_PIXELS = 16_000_000
MOST_VECTORS = 64
LARGEST_COMPONENT = 10.0


def read_picture(content: bytes, image: tuple[int, int, int], handwritten: bool) -> Float[Tensor, "c h w"]:
    """The first frame, upright and on white paper. The size is known, and refused, before anything is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return to_pixels(open_image(content, most=MOST_PIXELS), image, handwritten)
    except UserError as error:
        raise Refused(422, str(error)) from None


def parse_object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise Refused(422, "the body must be a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def parse_image(value: Any, image: tuple[int, int, int]) -> Float[Tensor, "c h w"]:
    """Base64 of one byte a value, or nested lists of numbers from 0 to 1, `[c][h][w]` (`[h][w]` if c is 1)."""
    c, h, w = image
    if isinstance(value, str):
        try:
            content = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Refused(422, "image is a string that is not base64") from None
        if len(content) != c * h * w:
            raise Refused(422, f"image must be {c}x{h}x{w}: {c * h * w} bytes in base64")
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).float().div(255).view(image)
    wanted = f"image must be base64 or nested lists of {c}x{h}x{w} numbers from 0 to 1"
    channels = [value] if c == 1 and _is_list(value, h) and _is_list(value[0], w) else value
    if not _is_list(channels, c):
        raise Refused(422, wanted)
    numbers: list[float] = []
    for channel in channels:
        if not _is_list(channel, h):
            raise Refused(422, wanted)
        for row in channel:
            if not _is_list(row, w) or not all(_is_number(number) and 0 <= number <= 1 for number in row):
                raise Refused(422, wanted)
            numbers += row
    return torch.tensor(numbers, dtype=torch.float32).view(image)


def parse_label(value: Any, classes: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < classes:
        raise Refused(422, f"a class must be a whole number from 0 to {classes - 1}")
    return value


def parse_labels(value: Any, classes: int) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not 1 <= len(value) <= classes:
        raise Refused(422, f"parents must be a list of 1 to {classes} classes")
    labels = [parse_label(label, classes) for label in value]
    if len(set(labels)) < len(labels):
        raise Refused(422, "parents must differ from each other")
    return labels


def parse_vectors(value: Any, dim: int) -> Float[Tensor, "n d"]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_VECTORS:
        raise Refused(422, f"vectors must be a list of 1 to {MOST_VECTORS} vectors")
    for vector in value:
        if not _is_list(vector, dim) or not all(_is_number(x) and abs(x) <= LARGEST_COMPONENT for x in vector):
            raise Refused(422, f"a vector must be {dim} numbers from -{LARGEST_COMPONENT:g} to {LARGEST_COMPONENT:g}")
    return torch.tensor(value, dtype=torch.float32)


def parse_corner(value: Any, window: Window | None) -> tuple[int, int] | None:
    """Where on the image to draw: top and left of the window, for a network that looks through one."""
    if value is None or window is None:
        return None
    free = [size - window.side for size in window.image[1:]]
    whole = _is_list(value, 2) and all(isinstance(x, int) and not isinstance(x, bool) for x in value)
    if not whole or not all(0 <= x <= most for x, most in zip(value, free, strict=True)):
        raise Refused(422, f"corner must be two whole numbers, from 0 to {free[0]} and to {free[1]}")
    return value[0], value[1]


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
