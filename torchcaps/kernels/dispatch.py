"""Which kernel serves which routing. Every layer calls its routing through `route`."""

from types import ModuleType

from jaxtyping import Float
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.kernels import blocks, fused_em, fused_routing
from torchcaps.kernels.blocks import peak_bytes
from torchcaps.routing import EM, Competition, Dynamic, Routing

__all__ = ["KERNELS", "peak_bytes", "route"]

KERNELS: dict[type[Routing], ModuleType] = {Dynamic: fused_routing, EM: fused_em}
"""By the routing's own class: what is derived from it may compute something else."""


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
    kernel = KERNELS.get(type(routing))
    if kernel is not None and not trace and kernel.supports(routing, children, weight, competition):
        return kernel.route(routing, children, weight, competition, together)
    output = blocks.route(routing, children, weight, competition=competition, trace=trace, together=together)
    _check(routing, output, (len(children.poses), *weight.shape[1:3]))
    return output


def _check(routing: Routing, output: RoutingOutput, parents: tuple[int, int, int]) -> None:
    if not isinstance(output, RoutingOutput):
        raise UserError(f"{type(routing).__name__} returned a {type(output).__name__}: a RoutingOutput is needed")
    given = tuple(output.poses.shape), tuple(output.activations.shape)
    if given != (parents, parents[:2]):
        raise UserError(
            f"{type(routing).__name__} returned poses {list(given[0])} and activations {list(given[1])}: "
            f"[batch, parents, pose] = {list(parents)} and {list(parents[:2])} are needed"
        )
