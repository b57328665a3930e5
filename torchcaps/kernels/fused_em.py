"""EM routing of a convolutional layer, a few images at a time.

The plain twin is `routing(votes(poses, weight))`. Its votes `[b i j d]` (170 MB in the second layer of the small matrix
network at batch 64) and a dozen tensors of their size wait for the backward pass. Here votes exist for one block of
images only, in a buffer that stays in cache and is used again for the next block; the backward pass computes them
again. All that EM asks of them (`routing/em.py`, `Votes`) are sums over children or over the pose, whose results are a
d-th of their size, so the procedure itself is left to autograd; only the votes' own gradient is put together by hand.
Every question that was asked of the votes adds one term to it of the form

    ∂V[i,j,d] = s[i,j] (α[j,d] + V[i,j,d] β[j,d])
"""

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.kernels import native
from torchcaps.kernels.tuning import eligible
from torchcaps.routing import EM, Competition, Routing

# Of the votes of a block; at least one image's, because all its windows share their children.
BLOCK_BYTES = {"cpu": 1 << 23, "cuda": 1 << 27}
BUFFERS = 2


def supports(
    routing: Routing, children: Capsules, weight: Float[Tensor, "i j d p"], competition: Competition | None = None
) -> TypeGuard[EM]:
    """Whether `route` computes this routing here; else its plain twin has to."""
    poses, activations = children[:2]
    return type(routing) is EM and eligible(poses, activations, weight, routing.beta_u, routing.beta_a)


def block_rows(rows: int, together: int, votes_of_a_row: int, device: torch.device) -> int:
    """How many rows of the batch make a block: a multiple of `together`, the windows of one image."""
    budget = BLOCK_BYTES.get(device.type, BLOCK_BYTES["cuda"])
    return min(rows, max(1, budget // (votes_of_a_row * together)) * together)


def route(
    routing: EM,
    children: Capsules,
    weight: Float[Tensor, "i j d p"],
    competition: Competition | None = None,
    together: int = 1,
) -> RoutingOutput:
    """What `routing(votes(poses, weight), activations, competition=competition)` returns.

    `together` neighbouring rows of the batch are never parted: `competition` is given whole groups of them.
    """
    mean, activation = _Route.apply(
        routing, competition, together, children.poses, children.activations, weight, routing.beta_u, routing.beta_a
    )  # pyright: ignore[reportGeneralTypeIssues]
    return RoutingOutput(mean, activation)


class _Term(NamedTuple):
    s: Float[Tensor, "b i j"]
    alpha: Float[Tensor, "b j d"]
    beta: Float[Tensor, "b j d"]


class _BlockVotes:
    """The votes of a block, children first as the matrix products leave them, and room for another of their size."""

    def __init__(self, room: Float[Tensor, "two n"], u: Float[Tensor, "i b p"], W: Float[Tensor, "i p jd"], dim: int):
        i, b, jd = len(u), u.shape[1], W.shape[2]
        votes, scratch = (part[: i * b * jd] for part in room)
        torch.bmm(u, W, out=votes.view(i, b, jd))
        self.V = votes.view(i, b, jd // dim, dim)
        self.scratch = scratch.view(self.V.shape)
        self.terms: list[_Term] = []

    def fit(self, shares: Float[Tensor, "b i j"]) -> tuple[Tensor, Tensor]:
        return _Fit.apply(shares, self)  # pyright: ignore[reportReturnType]

    def distances(self, mean: Float[Tensor, "b j d"], precision: Float[Tensor, "b j d"]) -> Float[Tensor, "b i j"]:
        return _Distances.apply(mean, precision, self)  # pyright: ignore[reportReturnType]

    def weighted(self, s: Float[Tensor, "b i j"]) -> Float[Tensor, "b j d"]:
        """`Σ_i s V`."""
        return _over_children(s, self.V)

    def spread(self, s: Float[Tensor, "b i j"], mean: Float[Tensor, "b j d"]) -> Float[Tensor, "b j d"]:
        """`Σ_i s (V - mean)²`."""
        return _over_children(s, self._squares(mean))

    def over_pose(
        self, mean: Float[Tensor, "b j d"], quadratic: Float[Tensor, "b j d"], linear: Float[Tensor, "b j d"]
    ) -> Float[Tensor, "b i j"]:
        """`Σ_d (V - mean)² quadratic + V linear`. A matrix product sums short rows in half the time `sum` takes."""
        values = self._squares(mean).mul_(quadratic).addcmul_(self.V, linear)
        return (values @ values.new_ones(values.shape[3])).transpose(0, 1)

    def gradient(self) -> Float[Tensor, "i b jd"]:
        """The sum of all terms, in the scratch room. They are forgotten: a term and its graph hold each other."""
        self._add_terms()
        self.terms.clear()
        return self.scratch.flatten(2)

    def _add_terms(self) -> None:
        shares = [term.s.transpose(0, 1).contiguous().unsqueeze(3) for term in self.terms]
        total = self.scratch.zero_()
        for s, term in zip(shares, self.terms, strict=True):
            total.addcmul_(s, term.beta)
        total.mul_(self.V)
        for s, term in zip(shares, self.terms, strict=True):
            total.addcmul_(s, term.alpha)

    def _squares(self, mean: Float[Tensor, "b j d"]) -> Float[Tensor, "i b j d"]:
        torch.sub(self.V, mean, out=self.scratch)
        return self.scratch.mul_(self.scratch)


def _over_children(weights: Float[Tensor, "b i j"], values: Float[Tensor, "i b j d"]) -> Float[Tensor, "b j d"]:
    b, i, j = weights.shape
    # Contiguous, or `bmm` goes through its batch one matrix at a time.
    rows = weights.transpose(1, 2).contiguous().view(b * j, 1, i)
    return torch.bmm(rows, values.view(i, b * j, -1).transpose(0, 1)).view(b, j, -1)


class _Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("children", "rows", "parents", "dim")]


class _CompiledVotes(_BlockVotes):
    """The same questions, each answered in one pass over the votes (`em_votes.c`)."""

    def weighted(self, s: Float[Tensor, "b i j"]) -> Float[Tensor, "b j d"]:
        return self._ask("weighted", s, out=self.V.new_empty(self.V.shape[1:]))

    def spread(self, s: Float[Tensor, "b i j"], mean: Float[Tensor, "b j d"]) -> Float[Tensor, "b j d"]:
        return self._ask("spread", s, mean, out=self.V.new_empty(self.V.shape[1:]))

    def over_pose(
        self, mean: Float[Tensor, "b j d"], quadratic: Float[Tensor, "b j d"], linear: Float[Tensor, "b j d"]
    ) -> Float[Tensor, "b i j"]:
        i, b, j, _ = self.V.shape
        return self._ask("over_pose", mean, quadratic, linear, out=self.V.new_empty(b, i, j))

    def _add_terms(self) -> None:
        columns = [[tensor.contiguous() for tensor in column] for column in zip(*self.terms, strict=True)]
        arrays = [(ctypes.c_void_p * len(column))(*native.pointers(*column)) for column in columns]
        self._call("gradient", *arrays, ctypes.c_long(len(self.terms)), *native.pointers(self.scratch))

    def _ask(self, name: str, *tensors: Tensor, out: Tensor) -> Tensor:
        operands = [tensor.contiguous() for tensor in tensors]
        self._call(name, *native.pointers(*operands, out))
        return out

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(native.library("em_votes"), name)
        function(_Sizes(*self.V.shape), *native.pointers(self.V), *arguments)


class _Fit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shares: Float[Tensor, "b i j"], votes: _BlockVotes) -> tuple[Tensor, Tensor]:
        mean = votes.weighted(shares)
        ctx.save_for_backward(shares, mean)
        ctx.votes = votes
        return mean, votes.spread(shares, mean)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        shares, mean = ctx.saved_tensors
        votes: _BlockVotes = ctx.votes
        # A variance does not depend on where its mean is, unless shares sum to less than one: a parent without data.
        grad_mean = grad_mean - 2 * grad_variance * mean * (1 - shares.sum(1)).unsqueeze(2)
        votes.terms.append(_Term(shares, grad_mean - 2 * grad_variance * mean, 2 * grad_variance))
        return votes.over_pose(mean, grad_variance, grad_mean), None


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, precision: Tensor, votes: _BlockVotes) -> Float[Tensor, "b i j"]:
        ctx.save_for_backward(mean, precision)
        ctx.votes = votes
        return votes.over_pose(mean, precision, torch.zeros_like(mean))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "b i j"]) -> tuple[Tensor, Tensor, None]:  # pyright: ignore
        mean, precision = ctx.saved_tensors
        votes: _BlockVotes = ctx.votes
        votes.terms.append(_Term(grad, -2 * precision * mean, 2 * precision))
        towards = votes.weighted(grad) - mean * grad.sum(1).unsqueeze(2)
        return -2 * precision * towards, votes.spread(grad, mean), None


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        routing: EM,
        competition: Competition | None,
        together: int,
        u: Float[Tensor, "b i p"],
        a: Float[Tensor, "b i"],
        weight: Float[Tensor, "i j d p"],
        beta_u: Float[Tensor, "j"],
        beta_a: Float[Tensor, "j"],
    ) -> tuple[Float[Tensor, "b j d"], Float[Tensor, "b j"]]:
        mean, activation = u.new_empty(len(u), *weight.shape[1:3]), u.new_empty(len(u), weight.shape[1])
        for rows, votes in _blocks(u, _matrices(weight), weight.shape[2], together):
            output = routing.route(votes, a[rows], beta_u, beta_a, competition=competition)
            mean[rows], activation[rows] = output.poses, output.activations
        ctx.save_for_backward(u, a, weight, beta_u, beta_a)
        ctx.routing, ctx.competition, ctx.together = routing, competition, together
        return mean, activation

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mean: Tensor, grad_activation: Tensor) -> tuple[Any, ...]:  # pyright: ignore
        u, a, weight, *betas = ctx.saved_tensors
        W = _matrices(weight)
        grad_u, grad_a, grad_W = torch.empty_like(u), torch.empty_like(a), torch.zeros_like(W)
        grad_betas = [torch.zeros_like(beta) for beta in betas]
        for rows, votes in _blocks(u, W, weight.shape[2], ctx.together):
            leaves = [tensor.detach().requires_grad_() for tensor in (a[rows], *betas)]
            with torch.enable_grad():
                output = ctx.routing.route(votes, *leaves, competition=ctx.competition)
            gradients = torch.autograd.grad(output[:2], leaves, (grad_mean[rows], grad_activation[rows]))
            grad_a[rows] = gradients[0]
            for total, gradient in zip(grad_betas, gradients[1:], strict=True):
                total += gradient
            grad_votes = votes.gradient()
            grad_u[rows] = torch.bmm(grad_votes, W.transpose(1, 2)).transpose(0, 1)
            grad_W.baddbmm_(u[rows].permute(1, 2, 0), grad_votes)
        grad_weight = grad_W.unflatten(2, weight.shape[1:3]).permute(0, 2, 3, 1)
        return None, None, None, grad_u, grad_a, grad_weight, *grad_betas


def _matrices(weight: Float[Tensor, "i j d p"]) -> Float[Tensor, "i p jd"]:
    return weight.permute(0, 3, 1, 2).flatten(2).contiguous()


def _blocks(
    u: Float[Tensor, "b i p"], W: Float[Tensor, "i p jd"], dim: int, together: int
) -> Iterator[tuple[slice, _BlockVotes]]:
    votes_of_a_row = len(W) * W.shape[2]
    size = block_rows(len(u), together, votes_of_a_row * u.element_size(), u.device)
    room = u.new_empty(BUFFERS, size * votes_of_a_row)
    kind = _BlockVotes if native.loops("em_votes", room) is None else _CompiledVotes
    for start in range(0, len(u), size):
        rows = slice(start, start + size)
        yield rows, kind(room, u[rows].transpose(0, 1).contiguous(), W, dim)
