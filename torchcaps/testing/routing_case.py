"""A routing under test, and inputs for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchcaps.routing import Routing, VoteShape
from torchcaps.testing.core import Run, must_run, require, seeded
from torchcaps.types import RoutingOutput, RoutingTrace

MakeRouting = Callable[[VoteShape], Routing]
# The parents' poses that a weighted mean of the votes gives: combine(routing, votes, couplings).
Combine = Callable[[Routing, Tensor, Tensor], Tensor]

# Three different sizes, so that an axis of a parameter is known by its size.
SHAPE = VoteShape(children=7, parents=5, dim=4)


@dataclass(frozen=True)
class RoutingCase:
    """A routing whose parameters have left their initial values (zeros would hide much), and inputs for it."""

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

    def inputs(self, dtype: torch.dtype = torch.float64, batch: int | None = None) -> tuple[Tensor, Tensor]:
        batch = batch or self.batch
        with seeded(2):
            votes = torch.randn(batch, *self.shape, dtype=torch.float64)
            activations = torch.rand(batch, self.shape.children, dtype=torch.float64) * 0.8 + 0.1
        return votes.to(dtype), activations.to(dtype)

    def traced(self, routing: Routing | None = None) -> tuple[RoutingOutput, RoutingTrace]:
        with must_run("routing with trace=True"):
            output = (routing or self.routing())(*self.inputs(), trace=True)
        require(output.trace is not None, "trace=True gives no trace")
        assert output.trace is not None
        return output, output.trace

    def __post_init__(self) -> None:
        if len({*self.shape}) < len(self.shape):
            raise ValueError(f"children, parents and dim must be three different numbers, not {tuple(self.shape)}")


def runner(routing: nn.Module) -> Run:
    def run(votes: Tensor, activations: Tensor) -> Sequence[Tensor]:
        output = routing(votes, activations)
        return output.poses, output.activations

    return run
