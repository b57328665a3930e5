"""Convolution of a few images as one matrix product with the weights as they are.

The plain twin is `torch.nn.functional.conv2d`, which lays out the weights anew in every call: for one image and the
21 MB of the paper's primary capsules that takes as long as the convolution itself. Here the pixels are laid out
instead, a row for each weight (`columns.c`), and nothing is kept of the weights, so nothing can become stale:

    y [o, b yh yw] = w [o, c kh kw] x̃ [c kh kw, b yh yw]
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.kernels import native, operands, workspace

WIDEST = 8
"""Numbers to a multiple of which rows are filled up: a vector of most processors."""


class _Sizes(ctypes.Structure):
    """As in `columns.c`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("images", "channels", "height", "width")),
        *((name, ctypes.c_long) for name in ("by_image", "by_channel", "by_row", "by_column")),
        *((name, ctypes.c_long) for name in ("taps_down", "taps_across", "down", "across", "stride", "padding")),
        *((name, ctypes.c_long) for name in ("channels_last", "outputs", "pitch", "threads")),
    ]


def supports(x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c kh kw"]) -> bool:
    """Nothing is differentiated here, and the weights of an output must lie side by side, channels first or last."""
    fitting = x.dtype == torch.float32 and x.device.type == "cpu" and weight.numel() > 0 and _dense(weight)
    return fitting and not torch.is_grad_enabled() and native.library("columns") is not None


def _dense(weight: Tensor) -> bool:
    return weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)


def columns_conv2d(
    x: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "o c kh kw"],
    bias: Float[Tensor, " o"] | None,
    stride: int = 1,
    padding: int = 0,
) -> Float[Tensor, "b o yh yw"]:
    """What `conv2d(x, weight, bias, stride, padding)` returns, without a gradient."""
    operands.check_convolution(x, weight, bias, stride, padding)
    bias = None if bias is None else bias.contiguous()
    images, channels, height, width = x.shape
    outputs, kernel = len(weight), weight.shape[2:]
    down, across = ((size + 2 * padding - taps) // stride + 1 for size, taps in zip(x.shape[2:], kernel, strict=True))
    places = images * down * across
    pitch = -(-places // WIDEST) * WIDEST
    sizes = _Sizes(images, channels, height, width, *x.stride(), *kernel, down, across, stride, padding)
    sizes.channels_last, sizes.outputs, sizes.pitch = not weight.is_contiguous(), outputs, pitch
    sizes.threads = torch.get_num_threads()
    loops = _loops()
    result, room = x.new_empty(outputs, pitch), workspace.take(loops.columns_room(sizes), like=x)
    loops.columns(sizes, *native.pointers(x, weight, bias, result, room))
    workspace.give(room)
    return result[:, :places].unflatten(1, (images, down, across)).transpose(0, 1)


@lru_cache(maxsize=1)
def _loops() -> Any:
    library = native.library("columns")
    assert library is not None, "supports() was not asked"
    library.columns_room.argtypes, library.columns_room.restype = [_Sizes], ctypes.c_long
    library.columns.argtypes, library.columns.restype = [_Sizes, *[ctypes.c_void_p] * 5], None
    return library
