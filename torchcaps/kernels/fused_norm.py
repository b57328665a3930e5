"""Max pooling of 2x2 pixels (or none), batch normalisation and ReLU as one operator, for training.

The plain twin is `relu(batch_norm(max_pool2d(x, 2)))`. Where it goes over memory eleven times, forward and backward,
the loops in `norm.c` do so four times. Of the map before pooling only the place of each largest pixel is kept.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchcaps.kernels import native, tuning
from torchcaps.kernels.transforms import is_pixel_major


class _Sizes(ctypes.Structure):
    """As in `norm.c`."""

    _fields_ = [(name, ctypes.c_long) for name in ("outer", "height", "width", "inner", "channels", "pooled")]


def supports(norm: nn.BatchNorm2d, x: Float[Tensor, "b c h w"]) -> bool:
    """In training, where the channels of a pixel lie side by side, and there are several pixels even after pooling."""
    if not (norm.training and torch.is_grad_enabled() and x.dtype == torch.float32 and x.device.type == "cpu"):
        return False
    known = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    usual = all(part is not None and part.dtype == x.dtype and part.shape == x.shape[1:2] for part in known)
    if not usual or norm.momentum is None or min(x.shape[2:]) < 2 or len(x) * (x.shape[2] // 2) * (x.shape[3] // 2) < 2:
        return False
    laid_out = is_pixel_major(x) or x.is_contiguous(memory_format=torch.channels_last)
    usable = laid_out and x.numel() > 0 and tuning.mode() != "plain" and not tuning.traced()
    return usable and native.library("norm") is not None


def norm_relu(norm: nn.BatchNorm2d, x: Float[Tensor, "b c h w"], pool: bool) -> Float[Tensor, "b c y x"]:
    """What `relu(norm(max_pool2d(x, 2)))` returns, or the same without pooling; the running statistics follow."""
    y, mean, variance = _NormRelu.apply(x, norm.weight, norm.bias, norm.eps, pool)  # pyright: ignore[reportGeneralTypeIssues]
    count = y.numel() // y.shape[1]
    follow(norm, mean, variance * (count / (count - 1)))
    return y


@torch.no_grad()
def follow(norm: nn.BatchNorm2d, mean: Float[Tensor, " c"], variance: Float[Tensor, " c"]) -> None:
    """The running statistics follow those of a batch, whose variance is the unbiased one."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    assert norm.num_batches_tracked is not None
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(variance, norm.momentum)
    norm.num_batches_tracked.add_(1)


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, pool: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        b, c, h, w = x.shape
        inside = is_pixel_major(x)
        sizes = _Sizes(1, h, w, b, c, pool) if inside else _Sizes(b, h, w, 1, c, pool)
        down, across = (h // 2, w // 2) if pool else (h, w)
        shape = (down, across, b, c) if inside else (b, down, across, c)
        loops = _loops()
        p = x.new_empty(shape) if pool else x
        which = x.new_empty(shape) if pool else None
        partial, of, y = x.new_empty(loops.norm_blocks(sizes), 2, c), x.new_empty(5, c), x.new_empty(shape)
        loops.norm_forward(sizes, eps, *native.pointers(x, weight, bias, p, which, partial, of, y))
        ctx.save_for_backward(p, which, of)
        ctx.sizes, ctx.inside = sizes, inside
        mean, variance = of[0], of[1]
        ctx.mark_non_differentiable(mean, variance)
        return _seen(y, inside), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        p, which, of = ctx.saved_tensors
        n, loops = ctx.sizes, _loops()
        grad = grad.permute((2, 3, 0, 1) if ctx.inside else (0, 2, 3, 1)).contiguous()
        partial, shares = grad.new_empty(loops.norm_blocks(n), 2, n.channels), grad.new_empty(2, n.channels)
        of_shift, of_scale = grad.new_empty(n.channels), grad.new_empty(n.channels)
        shape = (n.height, n.width, n.inner, n.channels) if ctx.inside else (n.outer, n.height, n.width, n.channels)
        odd = n.pooled and (n.height % 2 or n.width % 2)
        of_x = grad.new_zeros(shape) if odd else grad.new_empty(shape)
        made = (of_shift, of_scale, of_x)
        loops.norm_backward(n, *native.pointers(p, which, grad, of, partial, shares, *made))
        return _seen(of_x, ctx.inside), of_scale, of_shift, None, None


def _seen(memory: Tensor, inside: bool) -> Float[Tensor, "b c h w"]:
    """A map by image, channel, row and column that lies in memory as `[h w b c]`, or as `[b h w c]`."""
    return memory.permute((2, 3, 0, 1) if inside else (0, 3, 1, 2))


@lru_cache(maxsize=1)
def _loops() -> Any:
    library = native.library("norm")
    assert library is not None, "supports() was not asked"
    library.norm_blocks.argtypes, library.norm_blocks.restype = [_Sizes], ctypes.c_long
    library.norm_forward.argtypes = [_Sizes, ctypes.c_double, *[ctypes.c_void_p] * 8]
    library.norm_backward.argtypes = [_Sizes, *[ctypes.c_void_p] * 9]
    library.norm_forward.restype = library.norm_backward.restype = None
    return library
