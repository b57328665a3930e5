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
        *((name, ctypes.c_long) for name in ("row_by_channel", "row_by_tap")),
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
    x, bias = x.contiguous(), None if bias is None else bias.contiguous()
    images, channels, height, width = x.shape
    outputs, kernel = len(weight), weight.shape[2:]
    down, across = ((size + 2 * padding - taps) // stride + 1 for size, taps in zip(x.shape[2:], kernel, strict=True))
    places = images * down * across
    pitch = -(-places // WIDEST) * WIDEST
    panel = workspace.take(weight[0].numel(), pitch, like=x)
    result = x.new_empty(outputs, pitch)
    rows = (kernel.numel(), 1) if weight.is_contiguous() else (1, channels)
    sizes = _Sizes(images, channels, height, width, *x.stride(), *kernel, down, across, stride, padding, *rows)
    _loop()(sizes, outputs, pitch, torch.get_num_threads(), *native.pointers(x, weight, bias, panel, result))
    workspace.give(panel)
    return result[:, :places].unflatten(1, (images, down, across)).transpose(0, 1)


@lru_cache(maxsize=1)
def _loop() -> Any:
    library = native.library("columns")
    assert library is not None, "supports() was not asked"
    library.columns.argtypes = [_Sizes, *[ctypes.c_long] * 3, *[ctypes.c_void_p] * 5]
    library.columns.restype = None
    return library.columns
