"""Which way to do a convolution: `convolve` is what layers call.

| twin | what it is | good for |
|---|---|---|
| plain | `torch.nn.functional.conv2d` | small work, and whatever the others do not know |
| fourier | `phase_conv.py` | large kernels, strided too, many images |
| tiles | `winograd.py` | small kernels, many channels |
| columns | `columns.py` | large kernels and a few images, in inference |

`cost.py` estimates each, `tuning.py` decides and remembers. In a graph that `torch.compile` makes, all of them are one
operator, `torchcaps::convolution`, which chooses when it runs; a graph that is exported has PyTorch's own convolution.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d

from torchcaps.kernels import columns, cost, native, tuning, winograd
from torchcaps.kernels.columns import columns_conv2d
from torchcaps.kernels.dft import factor_count
from torchcaps.kernels.operators import operator
from torchcaps.kernels.phase_conv import phase_conv2d, phase_gradients
from torchcaps.kernels.winograd import winograd_conv2d, winograd_gradients

TWINS: dict[str, Callable[..., Tensor]] = {
    "plain": conv2d,
    "fourier": phase_conv2d,
    "tiles": winograd_conv2d,
    "columns": columns_conv2d,
}
GRADIENTS = {"fourier": phase_gradients, "tiles": winograd_gradients}


QUICK = 1 << 20
"""Weights below which one image is not worth a choice."""

Shape = tuple[int, ...]
"""Of a convolution: channels, height, width, outputs, kernel's height and width, stride, padding."""
_noted: list[Shape] | None = None


def convolve(conv: nn.Conv2d, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o yh yw"]:
    """`conv(x)`, by the twin that takes least."""
    if _noted is not None and _usual(conv):
        _noted.append(_shape(x, conv.weight, conv.stride[0], conv.padding[0])[1:])  # pyright: ignore[reportArgumentType]
    if torch.compiler.is_compiling() and x.device.type == "cpu" and _fits(conv, x, operator=True):
        y = compiled(x, conv.weight, conv.stride[0], conv.padding[0], torch.is_grad_enabled())
        return y if conv.bias is None else y + conv.bias[:, None, None]
    twin = chosen(conv, x)
    if twin == "plain":
        return conv(x)
    return TWINS[twin](x, conv.weight, conv.bias, conv.stride[0], conv.padding[0])


@contextmanager
def noted() -> Iterator[list[Shape]]:
    """Meanwhile, the shapes of all calls of `convolve`; a model on the `meta` device makes them in no time."""
    global _noted
    _noted = shapes = []
    try:
        yield shapes
    finally:
        _noted = None


def chosen(conv: nn.Conv2d, x: Float[Tensor, "b c h w"]) -> str:
    if tuning.mode() == "plain" or not _fits(conv, x):
        return "plain"
    run = Trial(conv, x, torch.is_grad_enabled())
    return _twin(x, conv.weight, conv.stride[0], conv.padding[0], run)  # pyright: ignore[reportArgumentType]


def _twin(x: Tensor, weight: Tensor, stride: int, padding: int, run: "Trial | None") -> str:
    """For numbers that all twins know; what is close is measured by `run`, if it is given."""
    mode, training = tuning.mode(), torch.is_grad_enabled()
    if mode == "plain" or (mode == "auto" and is_quick(len(x), weight.numel(), training)):
        return "plain"
    case, name = described(_shape(x, weight, stride, padding), training, x.dtype, torch.get_num_threads())
    if mode == "fast":
        return fewest_products(case, winograd.supports(x, weight, stride))
    if x.device.type != "cpu":
        return "plain"
    twin = tuning.known(name, run)
    if twin is None:
        may_measure = case.batch > 1 and not training
        twin = tuning.choose(name, _usable(x, weight, stride), partial(cost.estimate, case), run, may_measure)
    if twin == "fast":  # What runs of older versions have stored.
        return fewest_products(case, winograd.supports(x, weight, stride))
    return twin if twin in ("plain", "fourier") or twin in _usable(x, weight, stride) else "plain"


@lru_cache(maxsize=512)
def described(
    shape: tuple[int, ...], training: bool, dtype: torch.dtype = torch.float32, threads: int | None = None
) -> tuple[cost.Conv, str]:
    """Of batch, channels, height, width, outputs, kernel's height and width, stride, padding.

    Batches are told apart by powers of two, so that the last one of an epoch is not judged for itself.
    """
    batch, channels, height, width, outputs, down, across, stride, padding = shape
    batch = 2 ** (batch - 1).bit_length()
    case = cost.Conv(
        batch, channels, (height, width), outputs, (down, across), stride, padding, training, dtype.itemsize
    )
    name = (
        f"{'training' if training else 'inference'} conv2d {batch} x {channels} x {height} x {width} by "
        f"{outputs} x {down} x {across}, stride {stride}, padding {padding}, {dtype} on cpu, "
        f"{threads or torch.get_num_threads()} threads"
    )
    return case, name


def possible(case: cost.Conv) -> list[str]:
    """The twins for a convolution of float32 numbers on the CPU."""
    tiles = winograd.knows(case.kernel, case.stride) and native.library("tiles") is not None
    laid_out = not case.training and native.library("columns") is not None
    return ["plain", "fourier", *["tiles"] * tiles, *["columns"] * laid_out]


def is_quick(images: int, weights: int, training: bool) -> bool:
    """One image and few weights, in inference: to choose would take as long as to compute."""
    return images == 1 and weights < QUICK and not training


def fewest_products(case: cost.Conv, tiles: bool) -> str:
    """Of the two that multiply less than the plain twin; `tiles` says whether they can be used."""
    down, across = (-(-size // case.stride) for size in case.kernel)
    fourier = factor_count(case.result, (down, across))
    return "tiles" if tiles and winograd.cut(case.result, across).products <= fourier else "fourier"


def _shape(x: Tensor, weight: Tensor, stride: int, padding: int) -> Shape:
    """With the batch before it."""
    outputs, _, down, across = weight.shape
    return (*x.shape, outputs, down, across, stride, padding)


def _usual(conv: nn.Conv2d) -> bool:
    """What `Shape` describes."""
    return (
        type(conv) is nn.Conv2d
        and conv.stride[0] == conv.stride[1]
        and isinstance(conv.padding, tuple)
        and conv.padding[0] == conv.padding[1]
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and conv.groups == 1
    )


def _fits(conv: nn.Conv2d, x: Float[Tensor, "b c h w"], operator: bool = False) -> bool:
    """Whether this layer is one that the twins know, here and now, or one that may be the operator of a graph."""
    kernel, padding = conv.weight.shape[2:], conv.padding[0]
    return (
        _usual(conv)
        and tuning.eligible(x, conv.weight, operator=operator)
        and x.ndim == 4
        and x.shape[1] == conv.weight.shape[1]
        and x.device == conv.weight.device
        and (conv.bias is None or (conv.bias.dtype == x.dtype and conv.bias.shape == conv.weight.shape[:1]))
        and all(size + 2 * padding >= taps for size, taps in zip(x.shape[2:], kernel, strict=True))  # pyright: ignore
        and not (conv._forward_hooks or conv._forward_pre_hooks or conv._backward_hooks or conv._backward_pre_hooks)
    )


def _usable(x: Tensor, weight: Tensor, stride: int) -> tuple[str, ...]:
    tiles = ("tiles",) if winograd.supports(x, weight, stride) else ()
    laid_out = ("columns",) if columns.supports(x, weight) else ()
    return ("plain", "fourier", *tiles, *laid_out)


class Trial:
    """A call for the clock: the one that a layer makes, with its backward pass in training, but nothing stays behind.

    In inference the weights' transforms are kept (`remembered.py`), one for a tensor. Here every twin has the weights
    as a tensor of its own, so that after the first call of each no transform is timed that later calls do not make.
    """

    def __init__(self, conv: nn.Conv2d, x: Float[Tensor, "b c h w"], training: bool) -> None:
        self.conv, self.x, self.training = conv, x, training
        self.weights: dict[str, Tensor] = {}

    def __call__(self, twin: str) -> None:
        conv = self.conv
        weight = self.weights.setdefault(twin, conv.weight.detach()).requires_grad_(self.training)
        x = self.x.detach().requires_grad_(self.training)
        with torch.set_grad_enabled(self.training):
            y = TWINS[twin](x, weight, None, conv.stride[0], conv.padding[0])
            if self.training:
                torch.autograd.grad(y, (x, weight), torch.ones_like(y))


def _forward(x: Tensor, weight: Tensor, stride: int, padding: int, training: bool) -> Tensor:
    """The convolution of a compiled graph, channels last. Nothing is kept for the backward pass but x itself."""
    with torch.set_grad_enabled(training):
        twin = _twin(x, weight, stride, padding, None)
    with torch.no_grad():
        # Factors of weights that training changes are forgotten with the tensor that they belong to.
        return _channels_last(TWINS[twin](x, weight.detach() if training else weight, None, stride, padding))


def _fake(x: Any, weight: Any, stride: int, padding: int, _: bool) -> Any:
    down, across = (
        (size + 2 * padding - taps) // stride + 1 for size, taps in zip(x.shape[2:], weight.shape[2:], strict=True)
    )
    return _empty(x, (x.shape[0], weight.shape[0], down, across))


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, stride: int, padding: int, of_x: bool, of_weight: bool
) -> tuple[Tensor, Tensor]:
    """Of x, channels last, and of the weights; empty where not asked for. Kernels make their factors of x again."""
    with torch.enable_grad():
        twin = _twin(x, weight, stride, padding, None)
    if twin == "plain":
        options = ((stride, stride), (padding, padding), (1, 1), False, (0, 0), 1, (of_x, of_weight, False))
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(grad, x, weight, None, *options)
    else:
        with torch.no_grad():
            grad_x, grad_weight = GRADIENTS[twin](grad, x, weight, stride, padding, (of_x, of_weight))
    return (
        x.new_empty(0) if grad_x is None else _channels_last(grad_x),
        x.new_empty(0) if grad_weight is None else grad_weight.contiguous(),
    )


def _fake_gradients(
    grad: Any, x: Any, weight: Any, stride: int, padding: int, of_x: bool, of_weight: bool
) -> tuple[Any, Any]:
    return _empty(x, x.shape) if of_x else x.new_empty(0), x.new_empty(weight.shape if of_weight else 0)


def _empty(like: Any, shape: Sequence[Any]) -> Any:
    """Also of what stands for a tensor and its sizes while a graph is made."""
    b, c, h, w = shape
    return like.new_empty(b, h, w, c).permute(0, 3, 1, 2)


def _channels_last(y: Tensor) -> Tensor:
    """With the strides that a graph expects, also where there is only one image or channel."""
    expected = _empty(y, y.shape)
    return y if y.stride() == expected.stride() else expected.copy_(y)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.stride, ctx.padding, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_x, of_weight = ctx.needs_input_grad[:2]
    found = compiled_backward(grad, *ctx.saved_tensors, ctx.stride, ctx.padding, of_x, of_weight)
    return found[0] if of_x else None, found[1] if of_weight else None, None, None, None


compiled = operator("convolution", _forward, _fake, _backward, _setup_context)
compiled_backward = operator("convolution_backward", _gradients, _fake_gradients)
