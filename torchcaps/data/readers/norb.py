"""The binary matrix format of smallNORB's `*-dat.mat`, `*-cat.mat` and `*-info.mat` (it only shares MATLAB's suffix).

Little-endian: int32 magic, int32 number of dimensions, at least three int32 sizes (unused ones are 1), then the data.
LeCun, Huang and Bottou, "Learning Methods for Generic Object Recognition", CVPR 2004, and the README of the data set.
"""

import struct
from pathlib import Path

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.core.files import written_whole
from torchcaps.data.readers.files import read_array, reading

MAGIC = {0x1E3D4C55: "<u1", 0x1E3D4C54: "<i4"}
CODES = {np.dtype(name): magic for magic, name in MAGIC.items()}
LARGEST_RANK = 8


def read(path: str | Path) -> np.ndarray:
    """The array in a file of smallNORB, plain or packed with gz or xz."""
    path = Path(path)
    with reading(path) as file:
        magic, rank = struct.unpack("<Ii", file.read(8).ljust(8, b"\xff"))
        if magic not in MAGIC or not 0 <= rank <= LARGEST_RANK:
            raise UserError(f"{path} is not a smallNORB file: it should begin with 1E3D4C55 or 1E3D4C54")
        sizes = file.read(4 * max(rank, 3))
        if len(sizes) < 4 * max(rank, 3):
            raise UserError(f"{path} is cut short inside its header: fetch it again")
        return read_array(file, path, np.dtype(MAGIC[magic]), struct.unpack(f"<{len(sizes) // 4}i", sizes)[:rank])


def write(path: str | Path, array: np.ndarray) -> None:
    """Write uint8 or int32 in smallNORB's format, whole or not at all."""
    magic = CODES.get(array.dtype.newbyteorder("<"))
    if magic is None or not 1 <= array.ndim <= LARGEST_RANK:
        raise UserError(f"smallNORB's format cannot hold a {array.ndim}-dimensional array of {array.dtype}: use uint8")
    sizes = array.shape + (1,) * (3 - array.ndim)
    with written_whole(Path(path)) as file:
        file.write(struct.pack(f"<Ii{len(sizes)}i", magic, array.ndim, *sizes))
        file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())


def read_pairs(images: Path, categories: Path) -> tuple[np.ndarray, np.ndarray]:
    """Stereo pairs as two channels, uint8 [n 2 96 96], and their category, int64 [n]."""
    return read(images), read(categories).astype(np.int64).reshape(-1)
