"""The loops of `em.c` as operators of PyTorch: `torchcaps::em_forward` and `torchcaps::em_backward`.

Both take the children of a map and tables that say which of them are in which window:

    poses [b c p], activations [b c]   the children
    weight [m j side side]             with `matrix`: vote = pose · W;  else [m j d p]: vote = W · pose
    places [n i]                       for each window and each of its members, the child c
    owners [i]                         for each member its transforms m
    added [i d]                        what is added to its votes, or None
    local                              each window shares out its children by itself; else all parents that a child
                                       reaches compete for it
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.kernels import native
from torchcaps.kernels.operators import operator

LANES = 8
SCALARS = 4
"""Numbers of a parent besides mean and variance: data, price, activation, offset of the logits."""
GROUPS = 16
GROUP_BYTES = 1 << 26
"""Gradients of the transforms are summed in at most so many groups of images, and so many bytes where two fit in."""

# A number, or a symbol for one in a graph that is being compiled.
Size = Any
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Sizes(NamedTuple):
    """`Sizes` of `em.c`, but for its last numbers."""

    images: Size
    children: Size
    windows: Size
    members: Size
    parents: Size
    transforms: Size
    rows: Size
    inner: Size
    columns: Size
    iterations: Size
    local: bool

    @property
    def dim(self) -> Size:
        return self.rows * self.columns

    @property
    def groups(self) -> int:
        """Groups of images with a sum of their own. The number of threads has no part in it."""
        padded = self.transforms * self.inner * self.columns * _padded(self.parents) * 4
        return min(self.images, GROUPS, max(2, GROUP_BYTES // padded))

    def kept(self) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
        """Shapes of what the backward pass reads: parents of every iteration, and the norms of every softmax."""
        tiles = _padded(self.parents) // LANES * self.windows
        slots = self.windows * self.members if self.local else self.children
        parents = (self.images, self.iterations, tiles, 2 * self.dim + SCALARS, LANES)
        return parents, (self.images, self.iterations - 1, 2, slots)

    def room(self, backward: bool, keep: bool = True) -> int:
        """Numbers that the loops need to work with, for all threads."""
        n, loops = _struct(self), _loops()
        threads = torch.get_num_threads()
        if not backward:
            return loops.shared_room(n) + threads * loops.forward_room(n, keep)
        return loops.shared_room(n) + self.groups * loops.group_room(n) + threads * loops.backward_room(n)


class _Sizes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_long) for name in (*Sizes._fields, "threads", "groups")),
        *((name, ctypes.c_float) for name in ("variance_floor", "no_data")),
    ]


class _Tables(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("places", "owners", "added")),
        *((name, ctypes.POINTER(ctypes.c_float)) for name in ("inverse_temperature", "density_scale")),
    ]


@native.constant
def available() -> bool:
    """Whether there is a compiler or a compiled library."""
    return _loops() is not None


def _loops() -> Any:
    library = native.library("em")
    if library is not None and library.forward.argtypes is None:
        sizes, pointer = ctypes.POINTER(_Sizes), ctypes.c_void_p
        library.forward.argtypes = [sizes, ctypes.POINTER(_Tables), *[pointer] * 5, ctypes.c_int, *[pointer] * 5]
        library.backward.argtypes = [sizes, ctypes.POINTER(_Tables), *[pointer] * 15]
        library.forward.restype = library.backward.restype = None
        for name in ("shared_room", "group_room", "backward_room", "forward_room"):
            function = getattr(library, name)
            function.argtypes = [sizes, ctypes.c_int] if name == "forward_room" else [sizes]
            function.restype = ctypes.c_long
    return library


def _padded(parents: Size) -> Size:
    return -(-parents // LANES) * LANES


def _struct(n: Sizes, variance_floor: float = 0.0, no_data: float = 0.0) -> _Sizes:
    return _Sizes(*n, torch.get_num_threads(), n.groups, variance_floor, no_data)


def _tables(
    places: Tensor,
    owners: Tensor,
    added: Tensor | None,
    inverse_temperature: Sequence[float],
    density_scale: Sequence[float],
) -> _Tables:
    numbers = ((ctypes.c_float * len(x))(*x) for x in (inverse_temperature, density_scale))
    return _Tables(places.data_ptr(), owners.data_ptr(), None if added is None else added.data_ptr(), *numbers)


def sizes(poses: Tensor, weight: Tensor, places: Tensor, iterations: int, matrix: bool, local: bool) -> Sizes:
    images, children, pose = poses.shape
    transforms, parents, first, second = weight.shape
    rows, inner, columns = (first, first, second) if matrix else (1, second, first)
    if rows * inner != pose or (matrix and first != second):
        raise ValueError(f"poses of {pose} numbers do not fit transforms of shape {tuple(weight.shape)}")
    windows, members = places.shape
    return Sizes(images, children, windows, members, parents, transforms, rows, inner, columns, iterations, local)


def _check(
    n: Sizes,
    numbers: dict[str, tuple[Tensor | None, tuple[Size, ...]]],
    tables: dict[str, tuple[Tensor, Size]],
    inverse_temperature: Sequence[float],
    density_scale: Sequence[float],
) -> None:
    """Raise ValueError where C would read past the end of a tensor, or take its bytes for something else."""
    for name, (tensor, shape) in numbers.items():
        if tensor is None:
            continue
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"{name} must be float32 in main memory, not {tensor.dtype} on {tensor.device}")
        if tensor.shape != shape:
            raise ValueError(f"{name} must have the shape {tuple(shape)}, not {tuple(tensor.shape)}")
    for name, (tensor, stop) in tables.items():
        if tensor.dtype != torch.int32 or tensor.shape[-1] != n.members:
            raise ValueError(f"{name} must be int32 for {n.members} members, not {tensor.dtype} {tuple(tensor.shape)}")
        low, high = (int(value) for value in tensor.aminmax())
        if low < 0 or high >= stop:
            raise ValueError(f"{name} must be between 0 and {stop - 1}, not {low} to {high}")
    if not 1 <= n.iterations == len(inverse_temperature) == len(density_scale):
        raise ValueError("every iteration needs one inverse temperature and one density scale")


def _forward(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    places: Tensor,
    owners: Tensor,
    added: Tensor | None,
    inverse_temperature: Sequence[float],
    density_scale: Sequence[float],
    variance_floor: float,
    no_data: float,
    matrix: bool,
    local: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means `[b n j d]` and activations `[b n j]` of all parents; with `keep`, also what `em_backward` reads."""
    n = sizes(poses, weight, places, len(inverse_temperature), matrix, local)
    parents, each = (n.parents,), (n.members, n.dim)
    numbers = {
        "poses": (poses, poses.shape),
        "activations": (activations, poses.shape[:2]),
        "weight": (weight, weight.shape),
        "beta_u": (beta_u, parents),
        "beta_a": (beta_a, parents),
        "added": (added, each),
    }
    _check(
        n,
        numbers,
        {"places": (places, n.children), "owners": (owners, n.transforms)},
        inverse_temperature,
        density_scale,
    )
    operands = [tensor.contiguous() for tensor in (poses, activations, weight, beta_u, beta_a)]
    places, owners, added = places.contiguous(), owners.contiguous(), None if added is None else added.contiguous()
    outputs = _outputs(poses, n, keep)
    mean, activation, kept_parents, kept_norms = outputs
    if n.images == 0:
        return outputs
    room = poses.new_empty(n.room(backward=False, keep=keep))
    _loops().forward(
        _struct(n, variance_floor, no_data),
        _tables(places, owners, added, inverse_temperature, density_scale),
        *native.pointers(*operands),
        keep,
        *native.pointers(kept_parents, kept_norms, room, mean, activation),
    )
    return outputs


def _outputs(poses: Tensor, n: Sizes, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parents, norms = n.kept() if keep else ((0,), (0,))
    shape = (n.images, n.windows, n.parents)
    return poses.new_empty(*shape, n.dim), poses.new_empty(shape), poses.new_empty(parents), poses.new_empty(norms)


def _fake_forward(poses, activations, weight, beta_u, beta_a, places, owners, added, inverse_temperature, *options):  # pyright: ignore
    *_, matrix, local, keep = options
    return _outputs(poses, sizes(poses, weight, places, len(inverse_temperature), matrix, local), keep)


def _gradients(
    grad_mean: Tensor,
    grad_activation: Tensor,
    kept_parents: Tensor,
    kept_norms: Tensor,
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    places: Tensor,
    owners: Tensor,
    added: Tensor | None,
    inverse_temperature: Sequence[float],
    density_scale: Sequence[float],
    variance_floor: float,
    no_data: float,
    matrix: bool,
    local: bool,
) -> Gradients:
    """Gradients of poses, activations, weight, beta_u and beta_a."""
    n = sizes(poses, weight, places, len(inverse_temperature), matrix, local)
    parents, norms = n.kept()
    shape = (n.images, n.windows, n.parents)
    numbers = {
        "grad_mean": (grad_mean, (*shape, n.dim)),
        "grad_activation": (grad_activation, shape),
        "kept_parents": (kept_parents, parents),
        "kept_norms": (kept_norms, norms),
        "poses": (poses, poses.shape),
        "activations": (activations, poses.shape[:2]),
        "weight": (weight, weight.shape),
        "beta_u": (beta_u, shape[2:]),
        "beta_a": (beta_a, shape[2:]),
        "added": (added, (n.members, n.dim)),
    }
    _check(
        n,
        numbers,
        {"places": (places, n.children), "owners": (owners, n.transforms)},
        inverse_temperature,
        density_scale,
    )
    inputs = (poses, activations, weight, beta_u, beta_a)
    operands = [tensor.contiguous() for tensor in (*inputs, kept_parents, kept_norms, grad_mean, grad_activation)]
    places, owners, added = places.contiguous(), owners.contiguous(), None if added is None else added.contiguous()
    if n.images == 0:
        return tuple(torch.zeros_like(tensor) for tensor in inputs)  # pyright: ignore[reportReturnType]
    gradients: Gradients = tuple(tensor.new_empty(tensor.shape) for tensor in inputs)  # pyright: ignore[reportAssignmentType]
    room = poses.new_empty(n.room(backward=True))
    _loops().backward(
        _struct(n, variance_floor, no_data),
        _tables(places, owners, added, inverse_temperature, density_scale),
        *native.pointers(*operands, room, *gradients),
    )
    return gradients


def _fake_gradients(grad_mean, grad_activation, kept_parents, kept_norms, *inputs):  # pyright: ignore
    return tuple(tensor.new_empty(tensor.shape) for tensor in inputs[:5])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, inverse_temperature, density_scale, variance_floor, no_data, matrix, local, keep = inputs
    mean, activation, parents, norms = output
    ctx.mark_non_differentiable(parents, norms)
    ctx.set_materialize_grads(False)
    if keep:
        ctx.save_for_backward(parents, norms, *tensors)
    ctx.shapes = mean.shape, activation.shape
    ctx.options = inverse_temperature, density_scale, variance_floor, no_data, matrix, local


def _backward(
    ctx: Any, grad_mean: Tensor | None, grad_activation: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    if not saved:
        raise RuntimeError("em_forward was called with keep=False, which leaves nothing to compute gradients from")
    grads = [
        saved[0].new_zeros(shape) if grad is None else grad
        for grad, shape in zip((grad_mean, grad_activation), ctx.shapes, strict=True)
    ]
    return *em_backward(*grads, *saved, *ctx.options), *[None] * 10


em_forward = operator("em_forward", _forward, _fake_forward, _backward, _setup_context)
em_backward = operator("em_backward", _gradients, _fake_gradients)
