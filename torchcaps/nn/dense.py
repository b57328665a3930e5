"""Every child votes for every parent."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.types import CapsuleMap, Capsules, RoutingOutput, capsules_of
from torchcaps.kernels import dispatch
from torchcaps.nn.transforms import check_sizes
from torchcaps.routing import RoutingChoice, VoteShape, make_routing, routing_class


class DenseCaps(nn.Module):
    """Every child votes for every parent through its own matrix `W[i, j]`, and a routing decides (Eq. 2).

    `routing` is a name in `ROUTINGS` or a class, whose options follow as keywords, or a `Routing` made by hand.
    The children come from any layer, or as a plain tensor of poses, whose lengths (at most 1) are the activations.
    """

    def __init__(
        self,
        children: int,
        child_dim: int,
        parents: int,
        dim: int,
        routing: RoutingChoice = "dynamic",
        *,
        init_std: float | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        check_sizes("DenseCaps", children=children, child_dim=child_dim, parents=parents, dim=dim)
        self.weight = nn.Parameter(torch.empty(children, parents, dim, child_dim))
        std = routing_class(routing).init_std if init_std is None else init_std
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        self.routing = make_routing(routing, VoteShape(children, parents, dim, child_dim), **options)

    def forward(self, capsules: Capsules | CapsuleMap | RoutingOutput | Tensor, trace: bool = False) -> RoutingOutput:
        given = capsules_of(capsules)
        children, _, _, child_dim = self.weight.shape
        if given.poses.shape[1:] != (children, child_dim):
            count, size = given.poses.shape[1:]
            raise UserError(
                f"DenseCaps was made for {children} children of {child_dim} numbers and is given {count} of {size}: "
                f"DenseCaps({count}, {size}, ...) would fit"
            )
        return dispatch.route(self.routing, given, self.weight, trace=trace)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "DenseCaps":
        """`to(memory_format=torch.channels_last)` takes W for the weight of a convolution: its layout is kept."""
        super()._apply(fn, recurse)
        self.weight.data = self.weight.data.contiguous()
        return self

    def extra_repr(self) -> str:
        children, parents, dim, child_dim = self.weight.shape
        return f"{children} x {child_dim} -> {parents} x {dim}"
