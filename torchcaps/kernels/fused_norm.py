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
from torchcaps.kernels.phase_conv import is_pixel_major

POINTERS = {"sums": 4, "moments": 3, "apply": 4, "backward_sums": 7, "backward_totals": 3, "backward": 11}
"""How many each function of `norm.c` takes."""


class _Sizes(ctypes.Structure):
    """As in `norm.c`."""

    _fields_ = [(name, ctypes.c_long) for name in ("outer", "height", "width", "inner", "channels", "pooled")]


def supports(norm: nn.BatchNorm2d, x: Float[Tensor, "b c h w"]) -> bool:
    """In training, where the channels of a pixel lie side by side."""
    if not (norm.training and torch.is_grad_enabled() and x.dtype == torch.float32 and x.device.type == "cpu"):
        return False
    laid_out = is_pixel_major(x) or x.is_contiguous(memory_format=torch.channels_last)
    usable = laid_out and x.numel() > 0 and tuning.mode() != "plain" and not tuning.traced()
    return usable and native.library("norm") is not None


def norm_relu(norm: nn.BatchNorm2d, x: Float[Tensor, "b c h w"], pool: bool) -> Float[Tensor, "b c y x"]:
    """What `relu(norm(max_pool2d(x, 2)))` returns, or the same without pooling; the running statistics follow."""
    y, mean, variance = _NormRelu.apply(x, norm.weight, norm.bias, norm.eps, pool)  # pyright: ignore[reportGeneralTypeIssues]
    with torch.no_grad():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.momentum is not None
        assert norm.num_batches_tracked is not None
        count = y.numel() // y.shape[1]
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
        norm.num_batches_tracked.add_(1)
    return y


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
        loops, partial = _loops(), x.new_empty(_blocks(sizes), 2, c)
        p = x.new_empty(shape) if pool else x
        which = x.new_empty(shape) if pool else None
        loops.norm_sums(sizes, *native.pointers(x, p, which, partial))
        mean, variance = x.new_empty(c), x.new_empty(c)
        loops.norm_moments(sizes, *native.pointers(partial, mean, variance))
        rsqrt = torch.rsqrt(variance + eps)
        scale = weight * rsqrt
        shift = bias - mean * scale
        y = x.new_empty(shape)
        loops.norm_apply(sizes, *native.pointers(p, scale, shift, y))
        ctx.save_for_backward(p, which, scale, shift, mean, rsqrt)
        ctx.sizes, ctx.inside = sizes, inside
        ctx.mark_non_differentiable(mean, variance)
        return _seen(y, inside), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        p, which, scale, shift, mean, rsqrt = ctx.saved_tensors
        n, loops = ctx.sizes, _loops()
        grad = grad.permute((2, 3, 0, 1) if ctx.inside else (0, 2, 3, 1)).contiguous()
        partial = grad.new_empty(_blocks(n), 2, n.channels)
        loops.norm_backward_sums(n, *native.pointers(p, grad, scale, shift, mean, rsqrt, partial))
        of_shift, of_scale = torch.empty_like(mean), torch.empty_like(mean)
        loops.norm_backward_totals(n, *native.pointers(partial, of_shift, of_scale))
        shape = (n.height, n.width, n.inner, n.channels) if ctx.inside else (n.outer, n.height, n.width, n.channels)
        odd = n.pooled and (n.height % 2 or n.width % 2)
        of_x = grad.new_zeros(shape) if odd else grad.new_empty(shape)
        shares = [total * (n.channels / grad.numel()) for total in (of_shift, of_scale)]
        loops.norm_backward(n, *native.pointers(p, which, grad, scale, shift, mean, rsqrt, *shares, partial, of_x))
        return _seen(of_x, ctx.inside), of_scale, of_shift, None, None


def _seen(memory: Tensor, inside: bool) -> Float[Tensor, "b c h w"]:
    """A map by image, channel, row and column that lies in memory as `[h w b c]`, or as `[b h w c]`."""
    return memory.permute((2, 3, 0, 1) if inside else (0, 3, 1, 2))


def _blocks(sizes: _Sizes) -> int:
    return _loops().norm_blocks(sizes)


@lru_cache(maxsize=1)
def _loops() -> Any:
    library = native.library("norm")
    assert library is not None, "supports() was not asked"
    library.norm_blocks.argtypes, library.norm_blocks.restype = [_Sizes], ctypes.c_long
    for name, count in POINTERS.items():
        function = getattr(library, f"norm_{name}")
        function.argtypes, function.restype = [_Sizes, *[ctypes.c_void_p] * count], None
    return library
