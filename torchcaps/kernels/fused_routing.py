"""Dynamic routing in C: the votes of a few images at a time, in cache.

The plain twin is `routing(votes(poses, weight))`. It stores û `[b i j d]` of the whole batch (0.26 GB in the paper's
MultiMNIST network at batch 128) and reads it from main memory several times in every iteration. The loops in
`fused_routing.c` take a group of images whose votes fit in cache, and keep them for all iterations; where the votes of
one image do not fit, every iteration makes them again, a few children at a time, for many images. With V[j] the sum of
v[j] over the iterations so far, an iteration is one pass over the votes:

    c[i] = softmax over j of (prior[i,j] + û[j|i] · V[j])        s[j] = Σ_i c[i,j] û[j|i]

V is all that an iteration knows about the ones before it, so only s of every iteration is kept for the backward pass,
which makes the votes again. A vote's gradient is a sum over the iterations, `c grad_s + grad_logits V`, so the votes'
gradients are not stored either: they are put together where W's and u's are computed from them.
"""

import ctypes
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.core.functional import length, votes
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.kernels import native, operands, workspace
from torchcaps.kernels.operators import operator
from torchcaps.kernels.tuning import eligible, traced
from torchcaps.routing import Dynamic, Routing

GROUP_BYTES = 8 << 20
"""Votes that a thread keeps at a time, small enough for the last-level cache."""
GROUP_IMAGES = 4
KEPT_BYTES = 1 << 20
"""Votes of one image beyond which every iteration makes them again, for up to `AGAIN_IMAGES` at a time, unless a thread
has so few images that it can keep the votes of all: then to read W once is cheaper."""
AGAIN_IMAGES = 32
SPAN_BYTES = 8 << 20
"""Couplings and gradients of logits that wait for the gradient of W, which is read and written once for all of them; as
much as W itself takes, if that is more, or twice as much, if votes are not kept."""
SMALL = 1 << 20
"""Products of u and W below which a second thread costs more than it brings."""


def supports(routing: Routing, children: Capsules, weight: Tensor) -> TypeGuard[Dynamic]:
    """Whether `route` computes this routing with its loops in C; else its plain twin has to."""
    if type(routing) is not Dynamic:
        return False
    given = _operands(routing, children, weight)
    return eligible(*given, operator=True) and _served(*given) and _fits(routing, children, weight)


def route(routing: Dynamic, children: Capsules, weight: Float[Tensor, "i j d p"]) -> RoutingOutput:
    """What `routing(votes(poses, weight), children)` returns, and that itself for other precisions and devices."""
    if not (_served(*_operands(routing, children, weight)) and _fits(routing, children, weight)):
        return routing(votes(children.poses, weight), children)
    # For one image, to go through `torch.library` takes as long as the loops.
    computed = dynamic_routing if torch.is_grad_enabled() or traced() else _forward
    learned, options = (routing.log_priors, routing.bias), (routing.iterations, routing.leaky)
    v, _ = computed(children.poses, weight, *learned, *options, routing.gradient == "full", routing.sharpness)
    return RoutingOutput(v, length(v))


def _operands(routing: Dynamic, children: Capsules, weight: Tensor) -> list[Tensor]:
    return [x for x in (children.poses, weight, routing.log_priors, routing.bias) if x is not None]


def _fits(routing: Dynamic, children: Capsules, weight: Tensor) -> bool:
    """What is of other shapes may still be broadcast: by the plain twin, which also says what is wrong."""
    priors, bias = routing.log_priors, routing.bias
    return (
        children.poses.shape[1:] == (weight.shape[0], weight.shape[3])
        and (priors is None or priors.shape == weight.shape[:2])
        and (bias is None or bias.shape == weight.shape[1:3])
    )


def _served(*tensors: Tensor) -> bool:
    return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors) and _available()


def _forward(
    u: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    bias: Tensor | None,
    iterations: int,
    leaky: bool,
    full: bool,
    sharpness: float,
) -> tuple[Tensor, Tensor]:
    """v `[b j d]`, and s of every iteration `[r b j d]` for the backward pass; `full` matters there only."""
    _check(u, weight, prior, iterations)
    operands.check("bias", bias, weight.shape[1:3])
    v, sums = _fake(u, weight, prior, bias, iterations)
    _call("route", _sizes(u, weight, prior, iterations, leaky, full, sharpness), u, weight, prior, bias, sums, v)
    return v, sums


def _check(u: Tensor, weight: Tensor, prior: Tensor | None, iterations: int) -> None:
    if u.ndim != 3 or weight.ndim != 4 or not u.numel() or not weight.numel() or iterations < 1:
        shapes = f"{tuple(u.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"u [b i p] and weight [i j d p] are needed, none of them empty, not {shapes}")
    operands.check("u", u, (len(u), len(weight), weight.shape[3]))
    operands.check("weight", weight, weight.shape)
    operands.check("prior", prior, weight.shape[:2])


def _fake(u: Tensor, weight: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    iterations, (parents, dim) = options[2], weight.shape[1:3]
    return u.new_empty(len(u), parents, dim), u.new_empty(iterations, len(u), parents, dim)


def _gradients(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    sums: Tensor,
    leaky: bool,
    full: bool,
    sharpness: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, of W, of the priors (empty if there are none) and of s, summed over the iterations `[b j d]`."""
    _check(u, weight, prior, len(sums))
    operands.check("grad", grad, (len(u), *weight.shape[1:3]))
    operands.check("sums", sums, (len(sums), len(u), *weight.shape[1:3]))
    grad_u, grad_weight, grad_prior, grad_s = _fake_backward(grad, u, weight, prior)
    wanted = (grad_u, grad_weight, None if prior is None else grad_prior, grad_s)
    sizes = _sizes(u, weight, prior, len(sums), leaky, full, sharpness)
    _call("route_backward", sizes, u, weight, prior, sums, grad, *wanted)
    return grad_u, grad_weight, grad_prior, grad_s


def _fake_backward(grad: Tensor, u: Tensor, weight: Tensor, prior: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    shapes = (u.shape, weight.shape, (0,) if prior is None else prior.shape, grad.shape)
    return tuple(u.new_empty(shape) for shape in shapes)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    u, weight, prior, bias, _, *ctx.options = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(u, weight, prior, output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    u, weight, prior, sums = ctx.saved_tensors
    grads = dynamic_routing_backward(grad, u, weight, prior, sums, *ctx.options)
    grad_u, grad_weight, grad_prior, grad_s = grads
    grad_bias = grad_s.sum(0) if ctx.biased else None
    return grad_u, grad_weight, None if prior is None else grad_prior, grad_bias, None, None, None, None


dynamic_routing = operator("dynamic_routing", _forward, _fake, _backward, _setup_context)
dynamic_routing_backward = operator("dynamic_routing_backward", _gradients, _fake_backward)

_NAMES = "batch children parents dim child_dim iterations leaky full priors group span outer inner again"


class _Sizes(ctypes.Structure):
    """`Sizes` of fused_routing.c."""

    _fields_ = [*((name, ctypes.c_long) for name in _NAMES.split()), ("sharpness", ctypes.c_float)]


def _sizes(
    u: Tensor, weight: Tensor, prior: Tensor | None, iterations: int, leaky: bool, full: bool, sharpness: float
) -> _Sizes:
    """No number depends on `group`, `outer` and `inner`; `span` rounds the gradient of W differently."""
    batch, children, child_dim = u.shape
    parents, dim = weight.shape[1:3]
    threads = 1 if u.numel() * parents * dim < SMALL else torch.get_num_threads()
    outer, inner = (threads, 1) if batch >= 2 * threads else (1, threads)
    image = children * parents * u.element_size()
    priors = prior is not None
    passes = iterations if priors else max(1, iterations - 1)
    own = -(-batch // outer) * image * dim
    again = inner == 1 and image * dim > KEPT_BYTES and own > GROUP_BYTES
    span = max(1, min(batch, max(SPAN_BYTES, (1 + again) * weight.nbytes) // (2 * image * passes)))
    share = -(-min(batch, span) // outer)
    group = min(share, AGAIN_IMAGES) if again else min(share, GROUP_IMAGES, GROUP_BYTES // (image * dim))
    sizes = (batch, children, parents, dim, child_dim)
    return _Sizes(*sizes, iterations, leaky, full, priors, max(1, group), span, outer, inner, again, sharpness)


def _call(name: str, sizes: _Sizes, u: Tensor, *others: Tensor | None) -> None:
    """Inputs may have any layout; what is written to is contiguous."""
    loops = _loops()
    if loops is None:
        raise RuntimeError("torchcaps::dynamic_routing needs its loops in C, and they could not be compiled here")
    tensors = [None if x is None else x.contiguous() for x in (u, *others)]
    room = workspace.take(loops.room_size(sizes, int(name == "route_backward")), like=u)
    getattr(loops, name)(sizes, *native.pointers(*tensors, room))
    workspace.give(room)


@native.constant
def _available() -> bool:
    return _loops() is not None


def _loops() -> ctypes.CDLL | None:
    loops = native.library("fused_routing")
    if loops is not None and loops.route.argtypes is None:
        loops.room_size.argtypes, loops.room_size.restype = [_Sizes, ctypes.c_long], ctypes.c_long
        for function, pointers in ((loops.route, 7), (loops.route_backward, 10)):
            function.argtypes, function.restype = [_Sizes, *[ctypes.c_void_p] * pointers], None
    return loops
