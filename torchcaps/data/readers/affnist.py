"""affNIST as its author published it: a MATLAB struct whose `image` holds one digit of 40 x 40 pixels in each column.

Tijmen Tieleman, "The affNIST data set for machine learning", 2013: MNIST under random small affine transformations.
"""

from pathlib import Path

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.data.readers import matlab

SIDE = 40


def read(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [n 1 40 40], and labels, int64 [n]."""
    records = matlab.read(path).get("affNISTdata")
    if not isinstance(records, list) or len(records) != 1 or not isinstance(records[0], dict):
        raise UserError(f"{path} has no struct 'affNISTdata', so it is not an affNIST file")
    pixels, labels = matlab.numbers(records[0], "image", path), matlab.numbers(records[0], "label_int", path)
    if pixels.shape != (SIDE * SIDE, labels.size):
        raise UserError(f"{path}: image is {pixels.shape}, should be ({SIDE * SIDE}, {labels.size})")
    return pixels.T.astype(np.uint8).reshape(-1, 1, SIDE, SIDE), labels.reshape(-1).astype(np.int64)
