"""Just enough of MATLAB's version 5 files (what `save -v6` and `-v7` write) for the data sets that come in them.

The format: a header of 128 bytes, then elements, each a tag (type and size) and data padded to 8 bytes; at the top, an
element is an array or an array compressed with zlib. The MathWorks, "MAT-File Format", chapter 1. Numbers and structs
are read, cells and text passed over; sparse matrices, complex numbers and objects are refused.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.data.readers.files import reading

MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CELL, STRUCT, CHAR, NUMERIC = 1, 2, 4, range(6, 16)
COMPLEX = 0x0800
DEEPEST = 16  # structs within structs
TAG = 8  # bytes
MOST_BYTES = 1 << 30  # the largest file that is read here, the test images of affNIST, becomes 512 MB

Value = np.ndarray | list | None


class DamagedError(Exception):
    """The bytes do not follow the format."""


def read(path: str | Path, most: int = MOST_BYTES) -> dict[str, Value]:
    """The variables of a file by name, which may take `most` bytes together: a small file may say that it has more.

    Numbers come in MATLAB's shape and in the type they are stored in, the smallest that MATLAB found to hold them; they
    share memory with the file's bytes and cannot be written to. A struct array is a list of dictionaries, in column
    order (a single struct is a list of one), and what is passed over is None.
    """
    path = Path(path)
    with reading(path) as file:
        content = memoryview(_bounded(file, path, most)).toreadonly()
    if bytes(content[:10]) == b"MATLAB 7.3":
        raise UserError(f"{path} is a version 7.3 file, which is HDF5: save it again with MATLAB's -v7")
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
    if order is None:
        raise UserError(f"{path} is not a MATLAB version 5 file: its first 128 bytes should end in IM or MI")
    try:
        return dict(_variables(content[128:], order, most))
    except (DamagedError, UnicodeDecodeError, ValueError, struct.error, zlib.error) as error:
        raise UserError(f"{path} is damaged or of a kind that is not read here: {error}") from error


def _bounded(file: BufferedIOBase, path: Path, most: int) -> bytearray:
    """All of it, a little at a time: a small file may unpack to any size."""
    content = bytearray()
    while part := file.read(1 << 20):
        content += part
        if len(content) > most:
            raise UserError(f"{path} would take more than {most >> 20} MB, which no data set here has")
    return content


def numbers(variables: dict[str, Value], name: str, path: str | Path) -> np.ndarray:
    """The numeric array called `name`, or one line that says which there are."""
    value = variables.get(name)
    if not isinstance(value, np.ndarray):
        raise UserError(f"{path} has no numeric array {name!r}, only {', '.join(variables) or 'nothing'}")
    return value


def _variables(content: memoryview, order: str, most: int) -> Iterator[tuple[str, Value]]:
    for kind, data in _elements(content, order):
        if kind == COMPRESSED:
            size = _size_inside(data, order)
            most -= size
            if most < 0:
                raise DamagedError(f"a compressed array would take {size >> 20} MB, which no data set here has")
            unpack = zlib.decompressobj()
            kind, data = _take(_elements(memoryview(unpack.decompress(data, TAG + size + 1)), order))
            if not unpack.eof:
                raise DamagedError("a compressed array is cut short, or longer than it says")
        if kind != MATRIX:
            raise DamagedError(f"element type {kind} where an array should be")
        yield _array(data, order, DEEPEST)


def _size_inside(data: memoryview, order: str) -> int:
    """What a compressed element says it becomes, by its first bytes."""
    tag = zlib.decompressobj().decompress(data, TAG)
    if len(tag) < TAG:
        raise DamagedError("a compressed array is cut short")
    return struct.unpack(f"{order}II", tag)[1]


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at + 8 <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, at)
        if kind >> 16:  # up to four bytes of data sit inside the tag itself
            kind, size, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start = at + 8
            after = start + (size if kind == COMPRESSED else -(-size // 8) * 8)
        if start + size > min(after, len(content)):
            raise DamagedError("an element is cut short")
        yield kind, content[start : start + size]
        at = after


def _take(elements: Iterator[tuple[int, memoryview]]) -> tuple[int, memoryview]:
    try:
        return next(elements)
    except StopIteration:
        raise DamagedError("an element is missing") from None


def _array(data: memoryview, order: str, depth: int) -> tuple[str, Value]:
    """Name and value of one array: flags, dimensions and name come first, then what its class asks for."""
    if not data:
        return "", np.zeros((0, 0))
    elements = _elements(data, order)
    flags = struct.unpack_from(f"{order}I", _take(elements)[1])[0]
    shape = tuple(np.frombuffer(_take(elements)[1], f"{order}i4").tolist())
    name = bytes(_take(elements)[1]).decode("ascii")
    if min(shape, default=-1) < 0 or depth == 0:
        raise DamagedError(f"shape {shape} of {name!r}")
    match flags & 0xFF:
        case kind if kind in NUMERIC and not flags & COMPLEX:
            return name, _numbers(_take(elements), order, shape)
        case kind if kind in (CELL, CHAR):
            return name, None
        case kind if kind == STRUCT:
            fields = _field_names(elements, order)
            if not fields and math.prod(shape) > 1:
                raise DamagedError(f"{name!r} has many values of no fields")
            return name, [
                {field: _array(_take(elements)[1], order, depth - 1)[1] for field in fields}
                for _ in range(math.prod(shape))
            ]
    raise DamagedError(f"{name!r} is sparse, complex or an object")


def _numbers(element: tuple[int, memoryview], order: str, shape: tuple[int, ...]) -> np.ndarray:
    kind, data = element
    if kind not in STORED:
        raise DamagedError(f"element type {kind} where numbers should be")
    values = np.frombuffer(data, order + STORED[kind])
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(shape, order="F")


def _field_names(elements: Iterator[tuple[int, memoryview]], order: str) -> list[str]:
    """Names sit in slots of one length, filled up with zeros."""
    width = struct.unpack_from(f"{order}i", _take(elements)[1])[0]
    packed = bytes(_take(elements)[1])
    if width < 1 or len(packed) % width:
        raise DamagedError("field names")
    return [packed[at : at + width].split(b"\0")[0].decode("ascii") for at in range(0, len(packed), width)]
