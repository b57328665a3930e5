"""Strided convolution with fewer multiplications, for the primary capsules.

The plain twin is `torch.nn.functional.conv2d`. A convolution of stride s is the sum of s² convolutions of stride 1, one
for each phase of rows and columns modulo s. Each is short enough for a discrete Fourier transform of the size of its
input, written as a product with a small real matrix; phases add up in the frequency domain, so that they are just more
channels there. What is left is a matrix product for each frequency:

    y = T_y (T_x x ⊙ T_w w)        x̂ [f b c], ŵ [f o c], ŷ [f b o]

A real image has conjugate frequencies, of which one half is enough, and a complex product takes three real ones:
`k1 = w_r (x_r + x_i), k2 = x_r (w_i - w_r), k3 = x_i (w_r + w_i)`, then `y_r = k1 - k3, y_i = k1 + k2`. The sums are part
of the matrices. For the paper's 9x9 convolution of stride 2 that is 592 real products instead of 2916 on a 20x20 image,
1168 instead of 8100 on 28x28. Gradients are the transposed maps, so that they too are exact to rounding.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


class Geometry(NamedTuple):
    """Sizes along one axis: `frequencies` is the length of a phase of the input, and of the transform."""

    kernel: int
    stride: int
    outputs: int

    @property
    def taps(self) -> int:
        return math.ceil(self.kernel / self.stride)

    @property
    def frequencies(self) -> int:
        return self.outputs + self.taps - 1


class Transform(NamedTuple):
    """A linear map of `[h w ...]` to frequencies: along the rows, then for each group of results along the columns.

    A group is one real frequency of the rows, or the real and imaginary part of a complex one.
    """

    first: Float[Tensor, "g h"]
    second: tuple[Float[Tensor, "f gw"], ...]

    def apply(self, x: Float[Tensor, "h w n"], out: Float[Tensor, "f n"]) -> None:
        rows = (self.first @ x.flatten(1)).view(-1, x.shape[2])
        for matrix, part, target in self._groups(rows, out):
            torch.mm(matrix, part, out=target)

    def transpose(self, frequencies: Float[Tensor, "f n"], width: int) -> Float[Tensor, "h w n"]:
        columns = frequencies.shape[1]
        rows = frequencies.new_empty(len(self.first) * width, columns)
        for matrix, part, source in self._groups(rows, frequencies):
            torch.mm(matrix.T, source, out=part)
        return (self.first.T @ rows.view(len(self.first), -1)).view(-1, width, columns)

    def _groups(self, rows: Tensor, frequencies: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        parts = rows.split([matrix.shape[1] for matrix in self.second])
        return list(zip(self.second, parts, frequencies.split([len(m) for m in self.second]), strict=True))


class Transforms(NamedTuple):
    inputs: Transform
    weights: Transform
    outputs: Transform


@lru_cache(maxsize=64)
def transforms(height: Geometry, width: Geometry, dtype: torch.dtype, device: torch.device) -> Transforms:
    """Matrices for x, w and (transposed) y. Computed in float64, whatever they are used in."""
    n, m = height.frequencies, width.frequencies
    triples = {
        "inputs": (n, m, 1, lambda r, i: (r + i, r, i)),
        "weights": (height.taps, width.taps, -1, lambda r, i: (r, i - r, r + i)),
        "outputs": (height.outputs, width.outputs, 1, lambda r, i: (r + i, i, -r)),
    }

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

    def build(name: str) -> Transform:
        rows, columns, sign, triple = triples[name]
        first, second = [], []
        for f in range(n // 2 + 1):
            wave = np.exp(-2j * np.pi * sign * f * np.arange(rows) / n)
            f_real = (2 * f) % n == 0
            first += [wave.real] if f_real else [wave.real, wave.imag]
            group = []
            for g in range(m // 2 + 1 if f_real else m):
                other = np.exp(-2j * np.pi * sign * g * np.arange(columns) / m)
                g_real = f_real and (2 * g) % m == 0
                scale = (1 if g_real else 2) / (n * m) if name == "outputs" else 1
                real, imaginary = scale * other.real, scale * other.imag
                if not f_real:
                    real, imaginary = np.r_[real, -imaginary], np.r_[imaginary, real]
                group += [real] if g_real else list(triple(real, imaginary))
            second.append(tensor(np.stack(group)))
        return Transform(tensor(np.stack(first)), tuple(second))

    return Transforms(build("inputs"), build("weights"), build("outputs"))


CHUNK_BYTES = 4 << 20


def phase_conv2d(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c kh kw"], bias: Float[Tensor, " o"] | None, stride: int
) -> Float[Tensor, "b o yh yw"]:
    """What `torch.nn.functional.conv2d(x, weight, bias, stride)` returns."""
    y: Tensor = _PhaseConv.apply(x, weight, stride)  # pyright: ignore[reportAssignmentType]
    return y if bias is None else y + bias[:, None, None]


class _PhaseConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        axes = tuple(
            Geometry(kernel, stride, (size - kernel) // stride + 1)
            for size, kernel in zip(x.shape[2:], weight.shape[2:], strict=True)
        )
        maps = transforms(*axes, x.dtype, x.device)
        x_hat = _transform_inputs(x, maps, axes)
        w_hat = _transform_weights(weight, maps, axes)
        y_hat = torch.bmm(x_hat, w_hat.transpose(1, 2))
        ctx.save_for_backward(x_hat, w_hat)
        ctx.axes, ctx.sizes = axes, (x.shape, weight.shape)
        y = maps.outputs.transpose(y_hat.flatten(1), axes[1].outputs)
        return y.unflatten(2, (len(x), -1)).permute(2, 3, 0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x_hat, w_hat = ctx.saved_tensors
        axes, (x_shape, w_shape) = ctx.axes, ctx.sizes
        maps = transforms(*axes, grad.dtype, grad.device)
        y_hat = grad.new_empty(len(w_hat), x_shape[0], w_shape[0])
        maps.outputs.apply(grad.permute(2, 3, 0, 1).flatten(2), y_hat.flatten(1))
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = grad.new_empty(x_shape, memory_format=torch.channels_last)
            width = axes[1].frequencies
            for images, hat in zip(
                grad_x.split(_images_at_once(x_shape, grad)),
                torch.bmm(y_hat, w_hat).split(_images_at_once(x_shape, grad), 1),
                strict=True,
            ):
                _write_phases(images, maps.inputs.transpose(hat.flatten(1), width), axes)
        if ctx.needs_input_grad[1]:
            grad_w = grad.new_empty(w_shape, memory_format=torch.channels_last)
            hat = torch.bmm(y_hat.transpose(1, 2), x_hat)
            _write_phases(grad_w, maps.weights.transpose(hat.flatten(1), axes[1].taps), axes)
        return grad_x, grad_w, None


def _images_at_once(shape: torch.Size, like: Tensor) -> int:
    return max(1, CHUNK_BYTES // (math.prod(shape[1:]) * like.element_size()))


def _transform_inputs(x: Tensor, maps: Transforms, axes: tuple[Geometry, Geometry]) -> Tensor:
    sizes = [axis.frequencies for axis in axes]
    count = sum(len(matrix) for matrix in maps.inputs.second)
    x_hat = x.new_empty(count, len(x), axes[0].stride ** 2 * x.shape[1])
    step = _images_at_once(x.shape, x)
    for images, hat in zip(x.split(step), x_hat.split(step, 1), strict=True):
        maps.inputs.apply(_phases(images, axes[0].stride, *sizes), hat.flatten(1))
    return x_hat


def _transform_weights(weight: Tensor, maps: Transforms, axes: tuple[Geometry, Geometry]) -> Tensor:
    count = sum(len(matrix) for matrix in maps.weights.second)
    w_hat = weight.new_empty(count, len(weight), axes[0].stride ** 2 * weight.shape[1])
    maps.weights.apply(_phases(weight, axes[0].stride, axes[0].taps, axes[1].taps), w_hat.flatten(1))
    return w_hat


def _phases(x: Tensor, stride: int, height: int, width: int) -> Tensor:
    """`[b c h w]` as `[rows columns n]`, n running over images, phases and channels; missing pixels are zero."""
    missing = (0, width * stride - x.shape[3], 0, height * stride - x.shape[2])
    x = torch.nn.functional.pad(x, missing) if any(missing) else x
    split = x.unflatten(3, (width, stride)).unflatten(2, (height, stride))
    return split.permute(2, 4, 0, 3, 5, 1).reshape(height, width, -1)
