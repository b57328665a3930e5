"""Files that may be compressed, and arrays inside them: what every reader here builds on."""

import gzip
import lzma
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.core.files import open_regular

LARGEST_ARRAY = 4 << 30  # bytes; a header that promises more is damaged or hostile, so nothing is allocated for it


@contextmanager
def reading(path: Path) -> Iterator[BufferedIOBase]:
    """Open `path`, seeing through gz and xz by their magic; missing, damaged or cut short becomes one clear line."""
    try:
        with open_regular(path) as file:
            magic = file.read(6)
            file.seek(0)
            if magic.startswith(b"\x1f\x8b"):
                with gzip.open(file) as unpacked:
                    yield unpacked
            elif magic == b"\xfd7zXZ\x00":
                with lzma.open(file) as unpacked:
                    yield unpacked
            else:
                yield file
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path} cannot be read: {reason}") from error


def read_array(file: BufferedIOBase, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The rest of `file`, which must hold exactly `shape` values of `dtype`; native byte order and writable."""
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or expected > LARGEST_ARRAY:
        raise UserError(f"{path}: its header promises an array of shape {shape}, which no data set here has")
    content, filled = np.empty(expected, np.uint8), 0
    while filled < expected and (count := file.readinto(content.data[filled:])):
        filled += count
    if filled < expected or file.read(1):
        size = f"only {filled}" if filled < expected else "more"
        raise UserError(f"{path}: its header promises {expected} bytes of data, {size} follow: fetch it again")
    return content.view(dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
