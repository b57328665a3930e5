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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.kernels import native, operands
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
        threads, loops = torch.get_num_threads(), _loops()
        n = _Sizes(*self, threads, self.groups)
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


def sizes(poses: Tensor, weight: Tensor, places: Tensor, iterations: int, matrix: bool, local: bool) -> Sizes:
    images, children, pose = poses.shape
    transforms, parents, first, second = weight.shape
    rows, inner, columns = (first, first, second) if matrix else (1, second, first)
    if rows * inner != pose or (matrix and first != second):
        raise ValueError(f"poses of {pose} numbers do not fit transforms of shape {tuple(weight.shape)}")
    windows, members = places.shape
    return Sizes(images, children, windows, members, parents, transforms, rows, inner, columns, iterations, local)


class Inputs(NamedTuple):
    """What both operators take, in this order."""

    poses: Tensor
    activations: Tensor
    weight: Tensor
    beta_u: Tensor
    beta_a: Tensor
    places: Tensor
    owners: Tensor
    added: Tensor | None
    inverse_temperature: Sequence[float]
    density_scale: Sequence[float]
    variance_floor: float
    no_data: float
    matrix: bool
    local: bool

    def sizes(self) -> Sizes:
        return sizes(self.poses, self.weight, self.places, len(self.inverse_temperature), self.matrix, self.local)

    def check(self, n: Sizes, others: Mapping[str, tuple[Tensor, tuple[Size, ...]]] | None = None) -> None:
        """Raise ValueError where C would read past the end of a tensor, or take its bytes for something else."""
        numbers = {
            "activations": (self.activations, self.poses.shape[:2]),
            "beta_u": (self.beta_u, (n.parents,)),
            "beta_a": (self.beta_a, (n.parents,)),
            "added": (self.added, (n.members, n.dim)),
            **{name: (getattr(self, name), getattr(self, name).shape) for name in ("poses", "weight")},
            **(others or {}),
        }
        for name, (tensor, shape) in numbers.items():
            operands.check(name, tensor, shape)
        for name, shape, stop in (
            ("places", (n.windows, n.members), n.children),
            ("owners", (n.members,), n.transforms),
        ):
            tensor: Tensor = getattr(self, name)
            operands.check(name, tensor, shape, torch.int32)
            low, high = (int(value) for value in tensor.aminmax()) if tensor.numel() else (0, 0)
            if low < 0 or high >= stop:
                raise ValueError(f"{name} must be between 0 and {stop - 1}, not {low} to {high}")
        if not 1 <= n.iterations == len(self.inverse_temperature) == len(self.density_scale):
            raise ValueError("every iteration needs one inverse temperature and one density scale")

    def run(self, name: str, n: Sizes, *others: Any) -> None:
        """Call a loop of `em.c` with the tensors that are differentiated and the others; all may have any layout."""
        tables = [None if x is None else x.contiguous() for x in (self.places, self.owners, self.added)]
        numbers = ((ctypes.c_float * len(x))(*x) for x in (self.inverse_temperature, self.density_scale))
        struct = _Sizes(*n, torch.get_num_threads(), n.groups, self.variance_floor, self.no_data)
        given = [x.contiguous() if isinstance(x, Tensor) else x for x in (*self[:5], *others)]
        getattr(_loops(), name)(
            struct,
            _Tables(*native.pointers(*tables), *numbers),
            *(native.pointers(x)[0] if isinstance(x, Tensor) else x for x in given),
        )


def _forward(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means `[b n j d]` and activations `[b n j]` of all parents; with `keep`, also what `em_backward` reads."""
    inputs, keep = Inputs(*given[:-1]), given[-1]
    n = inputs.sizes()
    inputs.check(n)
    outputs = _fake_forward(*given)
    mean, activation, kept_parents, kept_norms = outputs
    if n.images:
        room = mean.new_empty(n.room(backward=False, keep=keep))
        inputs.run("forward", n, keep, kept_parents, kept_norms, room, mean, activation)
    return outputs


def _fake_forward(*given: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs, keep = Inputs(*given[:-1]), given[-1]
    n, new = inputs.sizes(), inputs.poses.new_empty
    parents, norms = n.kept() if keep else ((0,), (0,))
    shape = (n.images, n.windows, n.parents)
    return new(*shape, n.dim), new(shape), new(parents), new(norms)


def _gradients(*given: Any) -> Gradients:
    """Gradients of poses, activations, weight, beta_u and beta_a."""
    inputs = Inputs(*given[4:])
    n = inputs.sizes()
    shape = (n.images, n.windows, n.parents)
    names, shapes = ("grad_mean", "grad_activation", "kept_parents", "kept_norms"), ((*shape, n.dim), shape, *n.kept())
    inputs.check(n, dict(zip(names, zip(given, shapes, strict=False), strict=True)))
    gradients = _fake_gradients(*given)
    if not n.images:
        return tuple(gradient.zero_() for gradient in gradients)  # pyright: ignore[reportReturnType]
    grad_mean, grad_activation, kept_parents, kept_norms = given[:4]
    room = inputs.poses.new_empty(n.room(backward=True))
    inputs.run("backward", n, kept_parents, kept_norms, grad_mean, grad_activation, room, *gradients)
    return gradients


def _fake_gradients(*given: Any) -> Gradients:
    return tuple(tensor.new_empty(tensor.shape) for tensor in given[4:9])  # pyright: ignore[reportReturnType]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *options, keep = inputs
    mean, activation, parents, norms = output
    ctx.mark_non_differentiable(parents, norms)
    ctx.set_materialize_grads(False)
    if keep:
        ctx.save_for_backward(parents, norms, *options[:8])
    ctx.shapes, ctx.options = (mean.shape, activation.shape), options[8:]


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    if not saved:
        raise RuntimeError("em_forward was called with keep=False, which leaves nothing to compute gradients from")
    given = [
        saved[0].new_zeros(shape) if grad is None else grad for grad, shape in zip(grads, ctx.shapes, strict=False)
    ]
    return *em_backward(*given, *saved, *ctx.options), *[None] * 10


_TYPES = {Tensor: "Tensor", Tensor | None: "Tensor?", Sequence[float]: "float[]", float: "float", bool: "bool"}
_SCHEMA = ", ".join(f"{_TYPES[kind]} {name}" for name, kind in Inputs.__annotations__.items())
_FORWARD = f"({_SCHEMA}, bool keep) -> (Tensor, Tensor, Tensor, Tensor)"
_GRADS = "Tensor grad_mean, Tensor grad_activation, Tensor kept_parents, Tensor kept_norms"
_BACKWARD = f"({_GRADS}, {_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
em_forward = operator("em_forward", _forward, _fake_forward, _backward, _setup_context, _FORWARD)
em_backward = operator("em_backward", _gradients, _fake_gradients, schema=_BACKWARD)
