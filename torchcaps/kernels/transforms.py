"""From pixels to the factors of a Fourier transform and back: as loops in C where there are any, else as products.

The plain twin is `Transform.apply` and `Transform.transpose` (`dft.py`): two products with small matrices, between
which everything goes through memory. The loops in `dft.c` do both while one image is in cache, and read and write
pixels wherever they lie.
"""

import ctypes
import math
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.kernels import native, workspace
from torchcaps.kernels.dft import Transform

# Of the pixels that are transformed at once, so that what lies between the two steps of a transform stays in cache.
CHUNK_BYTES = 4 << 20


def is_pixel_major(x: Float[Tensor, "b c h w"]) -> bool:
    """Whether `x` lies in memory as `[h w b c]`."""
    return x.stride(1) == 1 and x.permute(2, 3, 0, 1).is_contiguous()


def empty_map(shape: tuple[int, ...], pixel_major: bool, like: Tensor) -> Float[Tensor, "b c h w"]:
    """Laid out as `[h w b c]` if `pixel_major`, else as `[b h w c]`, which loops read and write in one stream."""
    b, c, h, w = shape
    if pixel_major:
        return like.new_empty(h, w, b, c).permute(2, 3, 0, 1)
    return like.new_empty(b, h, w, c).permute(0, 3, 1, 2)


def to_factors(
    transform: Transform, x: Float[Tensor, "b c h w"], stride: int, grid: tuple[int, int]
) -> Float[Tensor, "f b sc"]:
    """Of every phase of rows and columns modulo `stride`, each of `grid` pixels."""
    factors = workspace.take(transform.factors, len(x), stride**2 * x.shape[1], like=x)
    if _served(x):
        _run("dft_to_factors", transform, x, factors, stride, grid)
        return factors
    step = len(x) if stride == 1 and is_pixel_major(x) else _at_once(x.shape, x)
    for part, target in zip(x.split(step), factors.split(step, 1), strict=True):
        transform.apply(_phases(part, stride, grid), target.flatten(1))
    return factors


def from_factors(
    transform: Transform,
    factors: Float[Tensor, "f b sc"],
    shape: tuple[int, ...],
    stride: int,
    grid: tuple[int, int],
    pixel_major: bool = False,
) -> Float[Tensor, "b c h w"]:
    """The gradient of `to_factors`; pixels beyond the grid have none."""
    if _served(factors):
        x = empty_map(shape, pixel_major, factors)
        if shape[2] > grid[0] * stride or shape[3] > grid[1] * stride:
            x.zero_()
        _run("dft_from_factors", transform, x, factors, stride, grid)
        return x
    if pixel_major and stride == 1 and grid == shape[2:]:
        pixels = transform.transpose(factors.flatten(1), grid[1])
        return pixels.unflatten(2, (shape[0], -1)).permute(2, 3, 0, 1)
    padded = empty_map((*shape[:2], grid[0] * stride, grid[1] * stride), False, factors)
    step = _at_once(shape, factors)
    for target, part in zip(padded.split(step), factors.split(step, 1), strict=True):
        pixels = transform.transpose(part.flatten(1), grid[1])
        split = target.unflatten(3, (grid[1], stride)).unflatten(2, (grid[0], stride)).permute(2, 4, 0, 3, 5, 1)
        split.copy_(pixels.view(split.shape))
    missing = (0, shape[3] - padded.shape[3], 0, shape[2] - padded.shape[2])
    return pad(padded, missing) if any(missing) else padded


def _at_once(shape: tuple[int, ...], like: Tensor) -> int:
    return max(1, CHUNK_BYTES // (math.prod(shape[1:]) * like.element_size()))


def _phases(x: Float[Tensor, "b c h w"], stride: int, grid: tuple[int, int]) -> Float[Tensor, "gh gw n"]:
    """`n` runs over images, phases and channels; what the image lacks is zero, what it has too much is cut off."""
    height, width = grid
    missing = (0, width * stride - x.shape[3], 0, height * stride - x.shape[2])
    x = pad(x, missing) if any(missing) else x
    split = x.unflatten(3, (width, stride)).unflatten(2, (height, stride))
    return split.permute(2, 4, 0, 3, 5, 1).reshape(height, width, -1)


_NAMES = "images height width channels by_image by_row by_column by_channel stride down across lines groups factors"


class _Sizes(ctypes.Structure):
    """As in `dft.c`."""

    _fields_ = [(name, ctypes.c_long) for name in (*_NAMES.split(), "apart", "shares")]


def _served(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and native.library("dft") is not None


def _run(
    name: str, transform: Transform, x: Float[Tensor, "b c h w"], factors: Tensor, stride: int, grid: tuple[int, int]
) -> None:
    b, c, h, w = x.shape
    by_image, by_channel, by_row, by_column = x.stride()
    laid_out = (b, h, w, c, by_image, by_row, by_column, by_channel)
    counts = (len(transform.first), len(transform.second), transform.factors, factors.stride(0))
    sizes = _Sizes(*laid_out, stride, *grid, *counts, torch.get_num_threads())
    room = workspace.take(sizes.shares * _loops().dft_room(sizes), like=factors)
    matrices = transform.packed if name == "dft_to_factors" else transform.packed_transposed
    ends = (x, room, factors) if name == "dft_to_factors" else (factors, room, x)
    getattr(_loops(), name)(sizes, *native.pointers(*transform.groups, *matrices, *ends))
    workspace.give(room)


@lru_cache(maxsize=1)
def _loops() -> Any:
    library = native.library("dft")
    assert library is not None, "_served() was not asked"
    library.dft_room.argtypes, library.dft_room.restype = [_Sizes], ctypes.c_long
    for function in (library.dft_to_factors, library.dft_from_factors):
        function.argtypes, function.restype = [_Sizes, *[ctypes.c_void_p] * 7], None
    return library
