"""Dynamic routing without the votes.

The plain twin is `routing(votes(poses, weight))`. It stores û `[b i j d]` (0.26 GB in the paper's MultiMNIST network at
batch 128) and reads it twice in every iteration. But routing only ever needs û multiplied with something:

    logits    û[j|i] · V[j]        =  u[i] · (V[j] W[i,j])          V[j]: the sum of v[j] over the iterations so far
    poses     Σ_i c[i,j] û[j|i]    =  Σ_i (c[i,j] u[i]) W[i,j]

so that two matrix products per parent, over all children and their pose dimensions, do the work of an iteration. V is
all that an iteration knows about the ones before it: nothing else is kept, the backward pass computes couplings again
from it, and memory does not grow with the iterations. Children are taken in blocks whose buffers stay in cache.
"""

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcaps.core.functional import EPSILON, length, squash
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.kernels import native
from torchcaps.kernels.tuning import eligible
from torchcaps.routing import Competition, Dynamic, Routing

# Of a block's largest buffer, `[j b p i]`: small enough for the cache, large enough to hide the cost of calling torch.
BLOCK_BYTES = {"cpu": 5 << 19, "cuda": 1 << 26}
BATCH_BLOCK = 256
CHILD_BLOCK = 256
MOST_PARENTS = 256


def supports(
    routing: Routing, children: Capsules, weight: Float[Tensor, "i j d p"], competition: Competition | None = None
) -> TypeGuard[Dynamic]:
    """Whether `route` computes this routing here; else its plain twin has to."""
    return type(routing) is Dynamic and competition is None and eligible(children.poses, weight)


def route(
    routing: Dynamic,
    children: Capsules,
    weight: Float[Tensor, "i j d p"],
    competition: None = None,
    together: int = 1,
) -> RoutingOutput:
    """What `routing(votes(poses, weight), children)` returns."""
    full = routing.gradient == "full"
    v: Tensor = _Route.apply(
        children.poses, weight, routing.log_priors, routing.bias, routing.iterations, routing.leaky, full
    )  # pyright: ignore[reportAssignmentType]
    return RoutingOutput(v, length(v))


class _Block(NamedTuple):
    """Some children, laid out for the matrix products; or the gradients with respect to them."""

    u: Float[Tensor, "b p i"]
    W: Float[Tensor, "j d pi"]
    prior: Float[Tensor, "j i"] | None


def _zeros_like(block: _Block) -> _Block:
    prior = None if block.prior is None else torch.zeros_like(block.prior)
    return _Block(torch.zeros_like(block.u), torch.zeros_like(block.W), prior)


class _Route(torch.autograd.Function):
    """Parents come first, `[j b d]`, because they are the batch of the matrix products."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Float[Tensor, "b i p"],
        weight: Float[Tensor, "i j d p"],
        prior: Float[Tensor, "i j"] | None,
        bias: Float[Tensor, "j d"] | None,
        iterations: int,
        leaky: bool,
        full: bool,
    ) -> Float[Tensor, "b j d"]:
        parents, dim = weight.shape[1:3]
        sums = u.new_empty(iterations, parents, len(u), dim)
        for rows, blocks in _batches(u, weight, prior):
            V = torch.zeros_like(sums[0, :, rows])
            for r in range(iterations):
                uniform = r == 0 and prior is None
                s = _uniform_sums(blocks, leaky) if uniform else _weighted_sums(blocks, V, leaky)
                s = s if bias is None else s + bias[:, None]
                sums[r, :, rows] = s
                V += squash(s)
        ctx.save_for_backward(u, weight, prior, bias, sums)
        ctx.leaky, ctx.full = leaky, full
        return squash(sums[-1]).transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "b j d"]) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        u, weight, prior, bias, sums = ctx.saved_tensors
        grad_u, grad_weight = u.new_empty(u.shape), weight.new_empty(weight.shape)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        shared: list[_Block] = []
        for rows, blocks in _batches(u, weight, prior):
            shared = shared or [_zeros_like(block) for block in blocks]
            gradients = [_Block(torch.zeros_like(b.u), g.W, g.prior) for b, g in zip(blocks, shared, strict=True)]
            V = squash(sums[:, :, rows]).cumsum(0)
            grad_v, grad_V = grad[rows].transpose(0, 1), torch.zeros_like(V[0])
            for r in reversed(range(len(sums))):
                grad_s = _squash_backward(sums[r, :, rows], grad_v)
                if grad_bias is not None:
                    grad_bias += grad_s.sum(1)
                if r == 0 and prior is None:
                    _uniform_sums_backward(blocks, gradients, grad_s, ctx.leaky)
                else:
                    before = V[r - 1] if r > 0 else torch.zeros_like(V[0])
                    grad_V += _weighted_sums_backward(blocks, gradients, grad_s, before, ctx.leaky, ctx.full)
                if not ctx.full:
                    break
                grad_v = grad_V
            size = gradients[0].u.shape[2]
            for part, gradient in zip(grad_u[rows].split(size, 1), gradients, strict=True):
                part.copy_(gradient.u.transpose(1, 2))
        for part, gradient in zip(grad_weight.split(shared[0].u.shape[2]), shared, strict=True):
            part.copy_(gradient.W.unflatten(2, (u.shape[2], -1)).permute(3, 0, 1, 2))
        grad_prior = None if prior is None else torch.cat([g.prior for g in shared if g.prior is not None], 1).T
        return grad_u, grad_weight, grad_prior, grad_bias, None, None, None


def _batches(
    u: Float[Tensor, "b i p"], weight: Float[Tensor, "i j d p"], prior: Float[Tensor, "i j"] | None
) -> Iterator[tuple[slice, list[_Block]]]:
    """Slices of the batch, each with its children in blocks."""
    batch, children, dim = u.shape
    budget = BLOCK_BYTES.get(u.device.type, BLOCK_BYTES["cuda"])
    row = min(batch, BATCH_BLOCK) * dim * weight.shape[1] * u.element_size()
    size = min(children, CHILD_BLOCK, max(8, budget // row // 8 * 8))
    weights = [x.permute(1, 2, 3, 0).flatten(2).contiguous() for x in weight.split(size)]
    priors = [None] * len(weights) if prior is None else [x.T.contiguous() for x in prior.split(size)]
    for start in range(0, batch, BATCH_BLOCK):
        rows = slice(start, start + BATCH_BLOCK)
        poses = (x.transpose(1, 2).contiguous() for x in u[rows].split(size, 1))
        yield rows, [_Block(*parts) for parts in zip(poses, weights, priors, strict=True)]


def _couplings(logits: Float[Tensor, "j b i"], leaky: bool) -> Float[Tensor, "j b i"]:
    """Eq. 3; the leak is one more parent, whose logit is 0."""
    if not leaky:
        return logits.softmax(0)
    return torch.cat([logits, torch.zeros_like(logits[:1])]).softmax(0)[:-1]


def _uniform_sums(blocks: list[_Block], leaky: bool) -> Float[Tensor, "j b d"]:
    """The first iteration without priors: all couplings are equal."""
    parents, dim, _ = blocks[0].W.shape
    s = sum(block.u.flatten(1) @ block.W.flatten(0, 1).T for block in blocks)
    return s.unflatten(1, (parents, dim)).transpose(0, 1) / (parents + leaky)  # pyright: ignore[reportAttributeAccessIssue]


def _uniform_sums_backward(
    blocks: list[_Block], gradients: list[_Block], grad_s: Float[Tensor, "j b d"], leaky: bool
) -> None:
    grad = grad_s.transpose(0, 1).flatten(1) / (len(grad_s) + leaky)
    for block, gradient in zip(blocks, gradients, strict=True):
        gradient.u.flatten(1).addmm_(grad, block.W.flatten(0, 1))
        gradient.W.flatten(0, 1).addmm_(grad.T, block.u.flatten(1))


def _weighted_sums(blocks: list[_Block], V: Float[Tensor, "j b d"], leaky: bool) -> Float[Tensor, "j b d"]:
    """Couplings from V, and what the children then send: one pass over the weights for Eq. 2 and 3."""
    s = torch.zeros_like(V)
    buffer = V.new_empty(0)
    for u, W, prior in blocks:
        shape = (len(V), *u.shape)
        buffer = buffer if buffer.shape == shape else V.new_empty(shape)
        torch.bmm(V, W, out=buffer.flatten(2))
        _share_out(buffer, u, prior, leaky)
        s.baddbmm_(buffer.flatten(2), W.transpose(1, 2))
    return s


def _weighted_sums_backward(
    blocks: list[_Block],
    gradients: list[_Block],
    grad_s: Float[Tensor, "j b d"],
    V: Float[Tensor, "j b d"],
    leaky: bool,
    full: bool,
) -> Float[Tensor, "j b d"]:
    """Adds to the children's gradients and returns V's.

    A vote's gradient is `c grad_s + grad_logits V`: the sum over a pair, so V and grad_s travel side by side as the
    rows of one matrix. Without `full`, grad_logits reaches the priors only.
    """
    pair = torch.stack([V, grad_s], 1)
    used = slice(None) if full else slice(1, 2)
    rows = pair[:, used].flatten(1, 2).transpose(1, 2)
    grad_V = torch.zeros_like(V)
    buffer = V.new_empty(0)
    for (u, W, prior), gradient in zip(blocks, gradients, strict=True):
        shape = (len(V), 2, *u.shape)
        buffer = buffer if buffer.shape == shape else V.new_empty(shape)
        torch.bmm(pair.flatten(1, 2), W, out=buffer.flatten(1, 2).flatten(2))
        _share_out_backward(buffer, u, prior, gradient, leaky, full)
        gradient.W.baddbmm_(rows, buffer[:, used].flatten(1, 2).flatten(2))
        if full:
            grad_V.baddbmm_(buffer[:, 0].flatten(2), W.transpose(1, 2))
    return grad_V


def _share_out(
    through: Float[Tensor, "j b p i"], u: Float[Tensor, "b p i"], prior: Float[Tensor, "j i"] | None, leaky: bool
) -> None:
    """`through`, which is V W, becomes what every child sends to every parent: its pose times the coupling."""
    loops = _loops(through, u, prior)
    if loops is not None:
        loops.share_out(_Sizes(*through.shape, leaky), *native.pointers(through, u, prior))
        return
    logits = (through * u).sum(2)
    c = _couplings(logits if prior is None else logits + prior[:, None], leaky)
    torch.mul(c.unsqueeze(2), u, out=through)


def _share_out_backward(
    through: Float[Tensor, "j 2 b p i"],
    u: Float[Tensor, "b p i"],
    prior: Float[Tensor, "j i"] | None,
    gradient: _Block,
    leaky: bool,
    full: bool,
) -> None:
    """`through`, which is V W and grad_s W, becomes the children times grad_logits and times the couplings."""
    parents, _, b, _, i = through.shape
    loops = _loops(through, u, prior, gradient.u)
    if loops is not None:
        grad_logits = None if gradient.prior is None else through.new_empty(parents, b, i)
        sizes = _Sizes(parents, *u.shape, leaky)
        loops.share_out_backward(sizes, int(full), *native.pointers(through, u, prior, gradient.u, grad_logits))
    else:
        logits, grad_c = (through * u).sum(3).unbind(1)
        c = _couplings(logits if prior is None else logits + prior[:, None], leaky)
        grad_logits = c * (grad_c - (c * grad_c).sum(0))
        factors = torch.stack([grad_logits, c], 1).unsqueeze(3)
        used = slice(None) if full else slice(1, 2)
        gradient.u.add_((factors * through)[:, used].sum((0, 1)))
        torch.mul(factors, u, out=through)
    if gradient.prior is not None and grad_logits is not None:
        gradient.prior.add_(grad_logits.sum(1))


def _loops(through: Tensor, *others: Tensor | None) -> ctypes.CDLL | None:
    """The loops keep couplings on the stack, where there is room for so many parents."""
    if len(through) > MOST_PARENTS:
        return None
    return native.loops("routing_blocks", through, *(x for x in others if x is not None))


class _Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("parents", "rows", "dim", "children", "leaky")]


def _squash_backward(s: Float[Tensor, "j b d"], grad: Float[Tensor, "j b d"]) -> Float[Tensor, "j b d"]:
    """With n = |s|² and f = √(n + ε) / (1 + n), v = f s: the gradient is `f g + 2 f' (g · s) s`."""
    n = s.square().sum(-1, keepdim=True)
    root = torch.sqrt(n + EPSILON)
    f = root / (1 + n)
    slope = 0.5 / (root * (1 + n)) - f / (1 + n)
    return f * grad + (2 * slope * (grad * s).sum(-1, keepdim=True)) * s
