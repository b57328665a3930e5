"""Sample pictures to compose from: digits of the package, or the test images of the run if they are on this machine."""

import base64
import math
from typing import Any

import torch

from torchcaps.core.errors import UserError
from torchcaps.data import DataSet, ImageSet, resolve

PER_CLASS = 30
MOST_BYTES = 4_000_000
"""Of all samples together: the page waits for them."""


NONE: dict[str, Any] = {"shape": None, "labels": [], "pixels": ""}


def load_samples(data: str | DataSet) -> dict[str, Any]:
    """Some test images of every class, the same in the same order each time, so that an address can name one.

    Nothing is fetched: where the files are gone or changed there are no samples, and one draws or uploads.
    """
    known, digits = resolve(data), resolve("mnist-mini")
    if not known.own and known.classes == digits.classes and known.image[0] == 1:
        return _pack(digits.images("test"))
    if known.image[0] > 3 or not known.is_here():
        return NONE
    try:
        test_set = known.test()
    except UserError:
        return NONE
    assert isinstance(test_set, ImageSet)
    return _pack(test_set)


def _pack(images: ImageSet) -> dict[str, Any]:
    classes, size = len(images.classes), math.prod(images.images.shape[1:])
    each = min(PER_CLASS, max(1, MOST_BYTES // (classes * size)))
    chosen = torch.cat([(images.labels == label).nonzero()[:each, 0] for label in range(classes)])
    pixels = images.images[chosen].contiguous().numpy().tobytes()
    return {
        "shape": list(images.images.shape[1:]),
        "labels": images.labels[chosen].tolist(),
        "pixels": base64.b64encode(pixels).decode("ascii"),
    }
