"""The protocol that every routing follows.

    routing = Dynamic(VoteShape(children=1152, parents=10, dim=16), iterations=3)
    output = routing(votes, children, trace=True)         # RoutingOutput(poses, activations, trace)

`votes` are `[b i j d]`; `children` are the `Capsules` they come from, with poses `[b i p]` and activations `[b i]`.

A routing is pure in its inputs: it writes no state in `forward`, and an image's answer does not depend on its
neighbours in the batch. Learned parameters (log priors, biases, temperatures) belong to the routing itself. Activations
are between 0 and 1, whatever the poses are: each the probability that a parent is there or, of a routing with `shares`,
its share of one total. A loss asks which of both they are.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.types import Capsules, RoutingOutput, RoutingTrace

# A child's normaliser over every parent it reaches: log Σ exp(logit). Dense layers sum over j; a convolutional layer
# also sums over the positions at which the same child meets other parents.
Competition = Callable[[Float[Tensor, "b i j"]], Float[Tensor, "b i #j"]]
Votes = Float[Tensor, "b i j d"]
Parents = tuple[Float[Tensor, "b j d"], Float[Tensor, "b j"]]
"""Poses and activations."""


class VoteShape(NamedTuple):
    """The sizes a routing may need for its parameters; `child_dim` is that of the children's own poses."""

    children: int
    parents: int
    dim: int
    child_dim: int = 0


class Routing(nn.Module):
    """Turns votes into parents. Subclasses take a `VoteShape` and keyword options, and implement `route`, or `forward`
    if they make a trace in another way."""

    iterations: int = 1
    shape: VoteShape | None
    options: dict[str, Any]
    """The sizes and the options that it was made with: what a saved run needs to make it again."""
    init_std: ClassVar[float] = 0.1
    """Deviation of the initial transforms where every child votes for every parent: how long votes are at first."""
    shares: ClassVar[bool] = False
    """Whether the activations of all parents sum to one."""

    def __new__(cls, *args: Any, **given: Any) -> "Routing":
        self = super().__new__(cls)
        given = dict(zip(inspect.signature(cls).parameters, args, strict=False)) | given
        shape = next((value for value in given.values() if isinstance(value, VoteShape)), None)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "options", {name: value for name, value in given.items() if value is not shape})
        return self

    def __init__(self, shape: VoteShape | None = None) -> None:
        super().__init__()

    def forward(
        self, votes: Votes, children: Capsules, *, competition: Competition | None = None, trace: bool = False
    ) -> RoutingOutput:
        recorder = Recorder(trace)
        poses, activations = self.route(votes, children, competition, recorder)
        return RoutingOutput(poses, activations, recorder.trace())

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: "Recorder") -> Parents:
        """The parents; `recorder` is told of every iteration."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        parameters = list(inspect.signature(type(self)).parameters.values())[1:]
        options = {one.name: one.default for one in parameters if one.default is not one.empty} | self.options
        return ", ".join(f"{name}={value!r}" for name, value in options.items())


def couplings(
    logits: Float[Tensor, "b i j"], leaky: bool = False, competition: Competition | None = None
) -> Float[Tensor, "b i j"]:
    """Eq. 3, the routing softmax over a child's parents.

    `leaky` adds a parent "none of the above" with logit 0, so that a child's couplings sum to less than one.
    """
    if competition is None and not leaky:
        return logits.softmax(-1)
    normaliser = logits.logsumexp(-1, keepdim=True) if competition is None else competition(logits)
    if leaky:
        normaliser = torch.logaddexp(normaliser, torch.zeros_like(normaliser))
    return torch.exp(logits - normaliser)


def positive(iterations: int) -> int:
    if iterations < 1:
        raise UserError(f"iterations must be at least 1, not {iterations}")
    return iterations


class Recorder:
    """Collects a trace when asked to, and costs nothing when not."""

    def __init__(self, wanted: bool) -> None:
        self.rows: list[tuple[Tensor, Tensor, Tensor]] | None = [] if wanted else None

    def add(self, couplings: Tensor, logits: Tensor, agreement: Tensor) -> None:
        if self.rows is not None:
            self.rows.append((couplings, logits, agreement))

    def __bool__(self) -> bool:
        return self.rows is not None

    def trace(self) -> RoutingTrace | None:
        if self.rows is None:
            return None
        return RoutingTrace(*(torch.stack(column) for column in zip(*self.rows, strict=True)))
