"""Convolution with fewer multiplications, in the Fourier domain: for large kernels, strided or not.

The plain twin is `torch.nn.functional.conv2d`. A convolution of stride s is the sum of s² convolutions of stride 1, one
for each phase of rows and columns modulo s. Each is small enough for a Fourier transform as a product with a small
matrix (`dft.py`), and the phases add up in the Fourier domain: there they are just more channels. What is left is one
matrix product for each real factor f:

    x̂ [f b c] = T_x x,   ŵ [f o c] = T_w w,   ŷ[f] = x̂[f] ŵ[f]ᵀ,   y = T_yᵀ ŷ        c running over phases and channels

The paper's 9x9 convolution of stride 2 takes 592 real products for each pair of channels instead of 2916 on a 20x20
image, and 1168 instead of 8100 on 28x28; a padded 3x3 one on 8x8 takes 148 instead of 576. Gradients are the transposed
maps, so that they are exact to rounding too. Tiles of pixels take fewer products still for 3x3 kernels (`winograd.py`).

Results lie in memory pixel by pixel, `[h w b c]`: what the transforms of a next convolution read without copying.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from torchcaps.kernels import workspace
from torchcaps.kernels.dft import Correlation, correlation
from torchcaps.kernels.operators import both_passes
from torchcaps.kernels.products import bmm
from torchcaps.kernels.remembered import remembered
from torchcaps.kernels.transforms import from_factors, is_pixel_major, to_factors


def phase_conv2d(
    x: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "o c kh kw"],
    bias: Float[Tensor, " o"] | None,
    stride: int = 1,
    padding: int = 0,
) -> Float[Tensor, "b o yh yw"]:
    """What `torch.nn.functional.conv2d(x, weight, bias, stride, padding)` returns."""
    if padding and stride > 1:
        x, padding = pad(x, (padding,) * 4), 0
    sizes = _sizes(x.shape, weight.shape, stride, padding)
    differentiated = torch.is_grad_enabled()
    w_hat = None if differentiated else remembered(weight, sizes, partial(_weight_factors, sizes=sizes))
    y: Tensor = _PhaseConv.apply(x, weight, w_hat, stride, padding)  # pyright: ignore[reportAssignmentType]
    return y if bias is None else y + bias[:, None, None]


def phase_gradients(
    grad: Float[Tensor, "b o yh yw"], x: Tensor, weight: Tensor, stride: int, padding: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of images and weights, from these alone."""
    border = padding if stride > 1 else 0
    padded = pad(x, (border,) * 4) if border else x
    grad_x, grad_w = both_passes(_PhaseConv, wanted, grad, padded, weight, None, stride, padding - border)
    if grad_x is not None and border:
        grad_x = grad_x[:, :, border:-border, border:-border]
    return grad_x, grad_w


class _Sizes(NamedTuple):
    """`taps` of the kernel and `grid` of the image in one phase, for rows and columns."""

    stride: int
    padding: int
    outputs: tuple[int, int]
    taps: tuple[int, int]
    grid: tuple[int, int]

    def maps(self, like: Tensor) -> Correlation:
        return correlation(self.outputs, self.taps, like.dtype, like.device, (self.padding, self.padding))


def _sizes(x: torch.Size, weight: torch.Size, stride: int, padding: int) -> _Sizes:
    images = [size + 2 * padding for size in x[2:]]
    outputs = [(size - kernel) // stride + 1 for size, kernel in zip(images, weight[2:], strict=True)]
    taps = [math.ceil(kernel / stride) for kernel in weight[2:]]
    grid = [places + taps - 1 - 2 * padding for places, taps in zip(outputs, taps, strict=True)]
    return _Sizes(stride, padding, (outputs[0], outputs[1]), (taps[0], taps[1]), (grid[0], grid[1]))


class _PhaseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, w_hat: Tensor | None, stride: int, padding: int) -> Tensor:
        """`w_hat` is given where nothing will be differentiated."""
        sizes = _sizes(x.shape, weight.shape, stride, padding)
        maps = sizes.maps(x)
        x_hat = to_factors(maps.inputs, x, stride, sizes.grid)
        differentiated = w_hat is None
        w_hat = _weight_factors(weight, sizes) if w_hat is None else w_hat
        y_hat = workspace.take(len(x_hat), len(x), len(weight), like=x)
        bmm(x_hat, w_hat.transpose(1, 2), y_hat)
        pixel_major = stride == 1 and is_pixel_major(x) and len(x) > 1
        y = from_factors(maps.outputs, y_hat, (len(x), len(weight), *sizes.outputs), 1, sizes.outputs, pixel_major)
        workspace.give(y_hat)
        if differentiated:
            ctx.hats, ctx.sizes, ctx.shapes = (x_hat, w_hat), sizes, (x.shape, weight.shape)
            ctx.pixel_major = pixel_major
        else:
            workspace.give(x_hat)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.hats is None:
            raise RuntimeError("this graph was freed by an earlier backward pass; use retain_graph=True there")
        (x_hat, w_hat), sizes, (x_shape, w_shape) = ctx.hats, ctx.sizes, ctx.shapes
        maps = sizes.maps(grad)
        y_hat = to_factors(maps.outputs, grad, 1, sizes.outputs)
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            hat = bmm(y_hat, w_hat, workspace.take(*x_hat.shape, like=grad))
            grad_x = from_factors(maps.inputs, hat, x_shape, sizes.stride, sizes.grid, ctx.pixel_major)
            workspace.give(hat)
        if ctx.needs_input_grad[1]:
            hat = bmm(y_hat.transpose(1, 2), x_hat, workspace.take(*w_hat.shape, like=grad))
            grad_w = from_factors(maps.weights, hat, w_shape, sizes.stride, sizes.taps)
            workspace.give(hat)
        workspace.give(y_hat)
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # pyright: ignore[reportAttributeAccessIssue]
            workspace.give(x_hat, w_hat)
            ctx.hats = None
        return grad_x, grad_w, None, None, None


def _weight_factors(weight: Tensor, sizes: _Sizes) -> Float[Tensor, "f o sc"]:
    return to_factors(sizes.maps(weight).weights, weight, sizes.stride, sizes.taps)
