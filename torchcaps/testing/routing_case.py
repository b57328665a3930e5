"""A routing under test, and inputs for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcaps.core.types import Capsules, RoutingOutput, RoutingTrace
from torchcaps.routing import Competition, Routing, VoteShape
from torchcaps.testing.core import must_run, require, seeded
from torchcaps.testing.modules import Run

MakeRouting = Callable[[VoteShape], Routing]
# combine(routing, votes, couplings) computes the parents' poses from the votes and the last couplings.
Combine = Callable[[Routing, Tensor, Tensor], Tensor]

# All sizes are different, so that an axis of a parameter is identified by its size.
SHAPE = VoteShape(children=7, parents=5, dim=4, child_dim=3)


@dataclass(frozen=True)
class RoutingCase:
    """A routing with random parameters (with initial zeros, some mistakes have no effect), and inputs for it."""

    make: MakeRouting
    shape: VoteShape = SHAPE
    batch: int = 3
    combine: Combine | None = None

    def routing(self, dtype: torch.dtype = torch.float64) -> Routing:
        with seeded(1), torch.no_grad():
            routing = self.make(self.shape)
            for parameter in routing.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return routing.to(dtype).eval()

    def inputs(self, dtype: torch.dtype = torch.float64, batch: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Votes, the children's activations and their poses."""
        batch, (children, parents, dim, child_dim) = batch or self.batch, self.shape
        with seeded(2):
            votes = torch.randn(batch, children, parents, dim, dtype=torch.float64)
            activations = torch.rand(batch, children, dtype=torch.float64) * 0.8 + 0.1
            poses = torch.randn(batch, children, child_dim, dtype=torch.float64)
        return votes.to(dtype), activations.to(dtype), poses.to(dtype)

    def traced(self, routing: Routing | None = None) -> tuple[RoutingOutput, RoutingTrace]:
        with must_run("routing with trace=True"):
            output = routed(routing or self.routing(), *self.inputs(), trace=True)
        require(output.trace is not None, "trace=True gives no trace")
        assert output.trace is not None
        return output, output.trace

    def __post_init__(self) -> None:
        if len({*self.shape}) < len(self.shape):
            raise ValueError(f"children, parents and dimensions must be different numbers, not {tuple(self.shape)}")


def routed(
    routing: nn.Module,
    votes: Tensor,
    activations: Tensor,
    poses: Tensor,
    trace: bool = False,
    competition: Competition | None = None,
) -> RoutingOutput:
    return routing(votes, Capsules(poses, activations), competition=competition, trace=trace)


def runner(routing: nn.Module, trace: bool = False) -> Run:
    def run(votes: Tensor, activations: Tensor, poses: Tensor) -> Sequence[Tensor]:
        output = routed(routing, votes, activations, poses, trace)
        return output.poses, output.activations

    return run
