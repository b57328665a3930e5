"""Street View House Numbers, cropped digits: MATLAB files with X, 32 x 32 x 3 x n, and y, where 10 means the digit 0.

Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", NIPS workshop 2011.
"""

from pathlib import Path

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.data.readers import matlab

MOST_BYTES = 256 << 20  # the training images are 225 MB


def read(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [n 3 32 32], and labels, int64 [n]."""
    variables = matlab.read(path, MOST_BYTES)
    pixels, labels = matlab.numbers(variables, "X", path), matlab.numbers(variables, "y", path).reshape(-1)
    if pixels.ndim == 3:  # MATLAB drops a last axis of one
        pixels = pixels[..., None]
    if pixels.shape != (32, 32, 3, len(labels)) or pixels.dtype != np.uint8:
        raise UserError(f"{path}: X is {pixels.dtype} {pixels.shape}, should be uint8 (32, 32, 3, {len(labels)})")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10
