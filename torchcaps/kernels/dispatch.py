"""Which kernel serves which routing: one table. Every layer calls its routing through here."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.core.types import CapsuleMap, Capsules, RoutingOutput
from torchcaps.kernels import blocks, fused_em, fused_routing
from torchcaps.routing import EM, Competition, Dynamic, Routing


class Kernel(NamedTuple):
    """What a kernel computes, and whether it can do so here."""

    supports: Callable[..., bool]
    """Of a routing, its children and the layer's transforms."""
    dense: Callable[..., RoutingOutput]
    """Every child votes for every parent."""
    windows: Callable[..., CapsuleMap] | None = None
    """Convolutional capsules, whose parents compete for a child across windows."""
    shared: Callable[..., RoutingOutput] | None = None
    """Class capsules, whose positions share their transforms."""


KERNELS: dict[type[Routing], Kernel] = {
    Dynamic: Kernel(fused_routing.supports, fused_routing.route),
    EM: Kernel(fused_em.supports, fused_em.route, fused_em.route_windows, fused_em.route_shared),
}
"""By the routing's own class: what is derived from it may compute something else."""


def kernel_for(
    layer: Literal["dense", "windows", "shared"], routing: Routing, children: Any, weight: Tensor, trace: bool
) -> Callable[..., Any] | None:
    """The function of a kernel that can serve this call of a layer; a trace is made by the plain twin."""
    kernel = None if trace else KERNELS.get(type(routing))
    function = None if kernel is None else getattr(kernel, layer)
    return function if kernel is not None and function and kernel.supports(routing, children, weight) else None


def route(
    routing: Routing,
    children: Capsules,
    weight: Float[Tensor, "i j d p"],
    *,
    competition: Competition | None = None,
    trace: bool = False,
    together: int = 1,
) -> RoutingOutput:
    """What `routing(votes(poses, weight), children)` returns, by its kernel where there is one that can.

    `together` neighbouring rows of the batch are the windows of one image: `competition` is given all of them or none.
    """
    kernel = kernel_for("dense", routing, children, weight, trace) if competition is None else None
    if kernel is not None:
        return kernel(routing, children, weight)
    output = blocks.route(routing, children, weight, competition=competition, trace=trace, together=together)
    _check(routing, output, (len(children.poses), *weight.shape[1:3]))
    return output


def _check(routing: Routing, output: RoutingOutput, parents: tuple[int, ...]) -> None:
    if not isinstance(output, RoutingOutput):
        raise UserError(f"{type(routing).__name__} returned a {type(output).__name__}: a RoutingOutput is needed")
    given = tuple(output.poses.shape), tuple(output.activations.shape)
    if given != (parents, parents[:2]):
        raise UserError(
            f"{type(routing).__name__} returned poses {list(given[0])} and activations {list(given[1])}: "
            f"[batch, parents, pose] = {list(parents)} and {list(parents[:2])} are needed"
        )
