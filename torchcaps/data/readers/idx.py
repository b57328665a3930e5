"""The idx format of MNIST: two zero bytes, a type code, the number of axes, big-endian int32 sizes, then the data.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits", section "File formats".
"""

import math
import struct
from pathlib import Path

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.data.readers.files import read_array, reading

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CODES = {np.dtype(name): code for code, name in TYPES.items()}
LARGEST_RANK = 8


def header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """What stands before the data of an array of this type and shape."""
    code = CODES.get(dtype.newbyteorder(">"))
    if code is None or not 1 <= len(shape) <= LARGEST_RANK:
        raise UserError(f"idx cannot hold a {len(shape)}-dimensional array of {dtype}: use uint8, int32 or float32")
    return struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape)


def read(path: str | Path) -> np.ndarray:
    """The array in an idx file, plain or packed with gz or xz."""
    path = Path(path)
    with reading(path) as file:
        zeros, code, rank = struct.unpack(">HBB", file.read(4).ljust(4, b"\xff"))
        if zeros or code not in TYPES or not 1 <= rank <= LARGEST_RANK:
            raise UserError(f"{path} is not an idx file: it should begin with 0, 0, a type code and the number of axes")
        sizes = file.read(4 * rank)
        if len(sizes) < 4 * rank:
            raise UserError(f"{path} is cut short inside its header: fetch it again")
        return read_array(file, path, np.dtype(TYPES[code]), struct.unpack(f">{rank}I", sizes))


def size(shape: tuple[int, ...]) -> int:
    """Bytes of a uint8 idx file of this shape, header included."""
    return 4 + 4 * len(shape) + math.prod(shape)
