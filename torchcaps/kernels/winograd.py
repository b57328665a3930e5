"""Convolution with a fifth to a half of the multiplications: Winograd's minimal filtering (Lavin and Gray 2016).

The plain twin is `torch.nn.functional.conv2d`. The result of a 3x3 convolution is cut into tiles of 4x4 pixels, each of
which depends on 6x6 pixels of the image, or of 6x6, which depend on 8x8. Both, and the kernel, are turned into 36 or 64
factors, of which those with the same number are multiplied as matrices from channels to channels:

    x̂ [f bt c] = B'xB,   ŵ [f o c] = GwG',   ŷ[f] = x̂[f] ŵ[f]',   y = A'ŷA          t running over the tiles of an image

That is 36 products for 16 pixels instead of 144, or 64 for 36 instead of 324. A convolution of stride 2 is the sum of
four of stride 1, one for each phase of rows and columns modulo 2, with kernels half as large; the phases are just more
channels. A 4x4 kernel becomes four of 2x2: 4 · 49 products for 36 pixels instead of 576. Gradients are the adjoint
maps. Everything is loops in C (`tiles.c`), which take a few tiles at a time from pixels to pixels, in cache; where
there are none, it is not used.
"""

import ctypes
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcaps.kernels import native, operands, workspace
from torchcaps.kernels.operators import both_passes
from torchcaps.kernels.remembered import remembered
from torchcaps.kernels.transforms import empty_map, is_pixel_major

TILES, STRIDES = {2: (6,), 3: (4, 6)}, (1, 2)
"""Sides of tiles, by that of the kernel in one phase; strides of convolutions."""
TILES_AT_ONCE = 16
"""Whose factors stay in cache from transform to transform."""


class _Map(ctypes.Structure):
    """As in `tiles.c`."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "columns", "channels")),
        *((name, ctypes.c_long) for name in ("by_image", "by_row", "by_column", "by_channel")),
    ]


class _Sizes(ctypes.Structure):
    """As in `tiles.c`."""

    _fields_ = [
        *((name, _Map) for name in ("x", "y", "weight")),
        *((name, ctypes.c_long) for name in ("images", "down", "across", "stride", "padding")),
        *((name, ctypes.c_long) for name in ("factors", "block", "shares")),
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
    outputs, tiles = _cut(x, weight, stride, padding)
    name = ("tiles", tiles, stride)
    w_hat = None
    if not torch.is_grad_enabled():
        w_hat = remembered(weight, name, partial(_weight_factors, tiles=tiles, stride=stride))
    y: Tensor = _Winograd.apply(x, weight, w_hat, outputs, tiles, stride, padding)  # pyright: ignore[reportAssignmentType]
    return y if bias is None else y + bias[:, None, None]


def winograd_gradients(
    grad: Float[Tensor, "b o yh yw"], x: Tensor, weight: Tensor, stride: int, padding: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of images and weights, from these alone."""
    return both_passes(_Winograd, wanted, grad, x, weight, None, *_cut(x, weight, stride, padding), stride, padding)


def _cut(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[tuple[int, int], Cut]:
    """Height and width of the result, and its tiles."""
    operands.check_convolution(x, weight, None, stride, padding)
    side = weight.shape[3]
    assert knows((weight.shape[2], side), stride), "supports() was not asked"
    height, width = ((size + 2 * padding - side) // stride + 1 for size in x.shape[2:])
    return (height, width), cut((height, width), taps_of(side, stride))


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
        x = x if x.stride(1) == 1 else x.contiguous(memory_format=torch.channels_last)
        pixel_major = is_pixel_major(x) and not x.is_contiguous(memory_format=torch.channels_last)
        y = empty_map((len(x), len(weight), *outputs), pixel_major, x)
        sizes = _sizes(x, y, weight, tiles, stride, padding)
        memory = _memory(sizes)
        x_hat = None
        if w_hat is None:
            w_hat = _weight_factors(weight, tiles, stride)
            x_hat = workspace.take(memory.x, like=x)
        room = workspace.take(memory.forward, like=x)
        _loop("forward", tiles)(sizes, *native.pointers(x, w_hat, x_hat, room, y))
        workspace.give(room)
        if x_hat is not None:
            workspace.give(w_hat)
            ctx.save_for_backward(weight)
            ctx.x_hat, ctx.sizes, ctx.tiles = x_hat, sizes, tiles
            ctx.pixel_major, ctx.shape = pixel_major, x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (weight,), sizes = ctx.saved_tensors, ctx.sizes
        grad = grad if grad.stride(1) == 1 else grad.contiguous(memory_format=torch.channels_last)
        sizes.y = _map(grad)
        memory = _memory(sizes)
        y_hat, room = workspace.take(memory.y, like=grad), workspace.take(memory.backward, like=grad)
        w_hat = grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = empty_map(ctx.shape, ctx.pixel_major, grad)
            sizes.x = _map(grad_x)
            w_hat = workspace.take(memory.weight_back, like=grad)
        if ctx.needs_input_grad[1]:
            grad_w = torch.empty_like(weight)
        _loop("backward", ctx.tiles)(
            sizes, *native.pointers(grad, weight, ctx.x_hat, w_hat, y_hat, room, grad_x, grad_w)
        )
        workspace.give(y_hat, room, *(() if w_hat is None else (w_hat,)))
        if not torch._C._autograd._get_current_graph_task_keep_graph():  # pyright: ignore[reportAttributeAccessIssue]
            workspace.give(ctx.x_hat)
            ctx.x_hat = None
        return grad_x, grad_w, None, None, None, None, None


def _weight_factors(weight: Float[Tensor, "o c k k"], tiles: Cut, stride: int) -> Tensor:
    """As the products of `forward` read them."""
    sizes = _sizes(weight, weight.transpose(0, 1), weight, tiles, stride, 0)  # of x and y, only the channels matter
    w_hat = workspace.take(_memory(sizes).weight, like=weight)
    _loop("weights", tiles)(sizes, *native.pointers(weight, w_hat))
    return w_hat


class _Memory(NamedTuple):
    """Numbers of what `tiles_memory` in `tiles.c` lists."""

    weight: int
    weight_back: int
    x: int
    y: int
    forward: int
    backward: int


def _memory(sizes: _Sizes) -> _Memory:
    counts = (ctypes.c_long * len(_Memory._fields))()
    _loops().tiles_memory(sizes, counts)
    return _Memory(*counts)


def _loop(name: Literal["weights", "forward", "backward"], tiles: Cut) -> Any:
    return getattr(_loops(), f"{name}_{tiles.tile}_{tiles.taps}")


@lru_cache(maxsize=1)
def _loops() -> Any:
    library = native.library("tiles")
    assert library is not None, "supports() was not asked"
    library.tiles_memory.argtypes = [_Sizes, ctypes.POINTER(ctypes.c_long)]
    library.tiles_memory.restype, library.tiles_rows.restype = None, ctypes.c_long
    library.tiles_rows.argtypes = []
    pointers = {"weights": 2, "forward": 5, "backward": 8}
    for taps, sides in TILES.items():
        for name, count in pointers.items():
            for side in sides:
                function = getattr(library, f"{name}_{side}_{taps}")
                function.argtypes, function.restype = [_Sizes, *[ctypes.c_void_p] * count], None
    return library


def _sizes(x: Tensor, y: Tensor, weight: Tensor, tiles: Cut, stride: int, padding: int) -> _Sizes:
    """No number depends on the last two."""
    shares = torch.get_num_threads()
    rows = _loops().tiles_rows()
    count = min(TILES_AT_ONCE, -(-len(x) * tiles.down * tiles.across // shares))
    block = -(-count // rows) * rows
    counts = len(x), tiles.down, tiles.across, stride, padding, tiles.factors, block, shares
    return _Sizes(_map(x), _map(y), _map(weight), *counts)


def _map(x: Float[Tensor, "b c h w"]) -> _Map:
    _, channels, rows, columns = x.shape
    by_image, by_channel, by_row, by_column = x.stride()
    return _Map(rows, columns, channels, by_image, by_row, by_column, by_channel)
