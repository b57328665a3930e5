"""Convolution with a fifth to a half of the multiplications: Winograd's minimal filtering (Lavin and Gray 2016).

The plain twin is `torch.nn.functional.conv2d`. The result of a 3x3 convolution is cut into tiles of 4x4 pixels, each of
which depends on 6x6 pixels of the image, or of 6x6, which depend on 8x8. Both, and the kernel, are turned into 36 or 64
factors, of which those with the same number are multiplied as matrices from channels to channels:

    x̂ [f bt c] = B'xB,   ŵ [f o c] = GwG',   ŷ[f] = x̂[f] ŵ[f]',   y = A'ŷA          t running over the tiles of an image

That is 36 products for 16 pixels instead of 144, or 64 for 36 instead of 324. A convolution of stride 2 is the sum of
four of stride 1, one for each phase of rows and columns modulo 2, with kernels half as large; the phases are just more
channels. A 4x4 kernel becomes four of 2x2: 4 · 49 products for 36 pixels instead of 576. Gradients are the adjoint
maps. The transforms are loops in C, each one pass over memory (`tiles.c`); where there are none, it is not used.
"""

import ctypes
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcaps.kernels import native, workspace
from torchcaps.kernels.remembered import remembered

TILES, STRIDES = {2: (6,), 3: (4, 6)}, (1, 2)
"""Sides of tiles, by that of the kernel in one phase; strides of convolutions."""
Kind = Literal["INPUT", "WEIGHT", "OUTPUT"]


class _Sizes(ctypes.Structure):
    """As in `tiles.c`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("images", "rows", "columns", "channels")),
        *((name, ctypes.c_long) for name in ("by_image", "by_row", "by_column", "down", "across")),
        *((name, ctypes.c_long) for name in ("first", "step", "stride")),
    ]


def supports(x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c kh kw"], stride: int) -> bool:
    fitting = knows((weight.shape[2], weight.shape[3]), stride) and x.dtype == torch.float32 and x.device.type == "cpu"
    return fitting and native.library("tiles") is not None


def knows(kernel: tuple[int, int], stride: int) -> bool:
    return kernel[0] == kernel[1] and stride in STRIDES and taps_of(kernel[0], stride) in TILES


def taps_of(kernel: int, stride: int) -> int:
    """Of the kernel's part in one phase, a side."""
    return -(-kernel // stride)


class Cut(NamedTuple):
    """A result in tiles of `tile` pixels a side, of a kernel with `taps` weights a side."""

    tile: int
    down: int
    across: int
    taps: int = 3

    @property
    def factors(self) -> int:
        """Of a tile."""
        return (self.tile + self.taps - 1) ** 2

    @property
    def products(self) -> int:
        """For each pair of channels."""
        return self.factors * self.down * self.across

    @property
    def of_weight(self) -> "Cut":
        return self._replace(down=1, across=1)


def cut(outputs: tuple[int, int], taps: int = 3) -> Cut:
    """Into the tiles that take fewer products; the smaller ones, which round less, if both take as many."""
    height, width = outputs
    cuts = (Cut(tile, -(-height // tile), -(-width // tile), taps) for tile in TILES[taps])
    return min(cuts, key=lambda cut: cut.products)


def winograd_conv2d(
    x: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "o c k k"],
    bias: Float[Tensor, " o"] | None,
    stride: int = 1,
    padding: int = 0,
) -> Float[Tensor, "b o yh yw"]:
    """What `conv2d(x, weight, bias, stride, padding)` returns."""
    side = weight.shape[3]
    assert knows((weight.shape[2], side), stride), "supports() was not asked"
    height, width = ((size + 2 * padding - side) // stride + 1 for size in x.shape[2:])
    tiles = cut((height, width), taps_of(side, stride))
    differentiated = torch.is_grad_enabled()
    name = ("tiles", tiles.tile, stride)
    w_hat = None if differentiated else remembered(weight, name, partial(weight_factors, tiles=tiles, stride=stride))
    y: Tensor = _Winograd.apply(x, weight, w_hat, (height, width), tiles, stride, padding)  # pyright: ignore[reportAssignmentType]
    return y if bias is None else y + bias[:, None, None]


def weight_factors(weight: Float[Tensor, "o c k k"], tiles: Cut, stride: int) -> Float[Tensor, "f o sc"]:
    return _to_factors("WEIGHT", weight, tiles.of_weight, stride)


class _Winograd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        w_hat: Tensor | None,
        outputs: tuple[int, int],
        tiles: Cut,
        stride: int,
        padding: int,
    ) -> Tensor:
        """`w_hat` is given where nothing will be differentiated."""
        x_hat = _to_factors("INPUT", x, tiles, stride, padding)
        differentiated = w_hat is None
        w_hat = weight_factors(weight, tiles, stride) if w_hat is None else w_hat
        y_hat = workspace.take(tiles.factors, x_hat.shape[1], len(weight), like=x)
        torch.bmm(x_hat, w_hat.transpose(1, 2), out=y_hat)
        y = _from_factors("OUTPUT", y_hat, (len(x), len(weight), *outputs), tiles, pixel_major=True)
        workspace.give(y_hat)
        if differentiated:
            ctx.hats, ctx.shapes = (x_hat, w_hat), (x.shape, weight.shape)
            ctx.tiles, ctx.stride, ctx.padding = tiles, stride, padding
            ctx.pixel_major = x.permute(2, 3, 0, 1).is_contiguous()
        else:
            workspace.give(x_hat)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if ctx.hats is None:
            raise RuntimeError("this graph was freed by an earlier backward pass; use retain_graph=True there")
        (x_hat, w_hat), (x_shape, w_shape) = ctx.hats, ctx.shapes
        y_hat = _to_factors("OUTPUT", grad, ctx.tiles)
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            hat = torch.bmm(y_hat, w_hat, out=workspace.take(*x_hat.shape, like=grad))
            grad_x = _from_factors("INPUT", hat, x_shape, ctx.tiles, ctx.stride, ctx.padding, ctx.pixel_major)
            workspace.give(hat)
        if ctx.needs_input_grad[1]:
            hat = torch.bmm(y_hat.transpose(1, 2), x_hat, out=workspace.take(*w_hat.shape, like=grad))
            grad_w = _from_factors("WEIGHT", hat, w_shape, ctx.tiles.of_weight, ctx.stride)
            workspace.give(hat)
        workspace.give(y_hat)
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # pyright: ignore[reportAttributeAccessIssue]
            workspace.give(x_hat, w_hat)
            ctx.hats = None
        return grad_x, grad_w, None, None, None, None, None


def _to_factors(kind: Kind, x: Tensor, tiles: Cut, stride: int = 1, padding: int = 0) -> Float[Tensor, "f bt sc"]:
    if x.stride(1) != 1:
        x = x.contiguous(memory_format=torch.channels_last)
    factors = workspace.take(tiles.factors, len(x) * tiles.down * tiles.across, stride**2 * x.shape[1], like=x)
    loop = _loop(f"{kind}_to_factors_{tiles.tile}_{tiles.taps}")
    loop(_sizes(x, tiles, stride, padding), *native.pointers(x, factors))
    return factors


def _from_factors(
    kind: Kind,
    factors: Float[Tensor, "f bt sc"],
    shape: tuple[int, ...],
    tiles: Cut,
    stride: int = 1,
    padding: int = 0,
    pixel_major: bool = False,
) -> Float[Tensor, "b c h w"]:
    """The adjoint of `_to_factors`, laid out as `[h w b c]` if `pixel_major`, else as `[b h w c]`."""
    b, c, h, w = shape
    if pixel_major:
        x = factors.new_zeros(h, w, b, c).permute(2, 3, 0, 1)
    else:
        x = factors.new_zeros(b, h, w, c).permute(0, 3, 1, 2)
    loop = _loop(f"{kind}_from_factors_{tiles.tile}_{tiles.taps}")
    loop(_sizes(x, tiles, stride, padding), *native.pointers(factors, x))
    return x


def _loop(name: str) -> Any:
    library = native.library("tiles")
    assert library is not None, "supports() was not asked"
    function = library[name]
    function.argtypes, function.restype = [_Sizes, ctypes.c_void_p, ctypes.c_void_p], None
    return function


def _sizes(x: Float[Tensor, "b c h w"], tiles: Cut, stride: int, padding: int) -> _Sizes:
    b, c, h, w = x.shape
    steps = x.stride(0), x.stride(2), x.stride(3)
    return _Sizes(b, h, w, c, *steps, tiles.down, tiles.across, -padding, tiles.tile, stride)
