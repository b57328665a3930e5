"""EM routing of whole images in C: votes are made in cache, used and forgotten.

The plain twin is `routing(votes(poses, weight))` (`routing/em.py`). It stores the votes `[b i j d]` (170 MB in the
second layer of the small matrix network at batch 64) and a dozen tensors of their size. Here (`em.c`) an image is
routed by one thread, all its windows together, because parents in different windows compete for the same child. Votes
exist for 8 parents of one window at a time. A vote costs as much to make as to fetch from memory, so every iteration
makes them again, and so does the backward pass.

For the backward pass the mean and the variance of every parent are kept, of every iteration, and two numbers of the
softmax of every child. Assignments follow from these. With `s = R a / Σ_i R a`, the gradient of the votes is

    Σ_t  s G_mean + (V - mean) (2 s G_variance - G_logit κ / variance)

The two operators `torchcaps::em_forward` and `torchcaps::em_backward` are known to `torch.compile`.
"""

import math
from typing import NamedTuple, TypeGuard

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from torchcaps.core.types import CapsuleMap, Capsules, RoutingOutput
from torchcaps.core.windows import Windows, table
from torchcaps.kernels import em_operators
from torchcaps.kernels.tuning import eligible, mode
from torchcaps.routing import EM, Routing
from torchcaps.routing.em import NO_DATA


class Layout(NamedTuple):
    """Which children are in which window, which transforms they have, and who competes for them."""

    places: Int32[Tensor, "n i"]
    """For each window and each of its members, the child of the map."""
    owners: Int32[Tensor, "i"]
    """For each member its row of the transforms."""
    local: bool = False
    """Each window shares out its children by itself."""


def runs(routing: Routing) -> TypeGuard[EM]:
    """Whether `route` computes this routing for ordinary numbers on this machine."""
    return type(routing) is EM and mode() != "plain" and em_operators.available()


def supports(routing: Routing, children: Capsules | CapsuleMap | RoutingOutput, weight: Tensor) -> TypeGuard[EM]:
    """Whether `route` computes this routing here; else its plain twin has to."""
    if not runs(routing) or not (isinstance(children, CapsuleMap) or fits(routing, children, weight)):
        return False
    tensors = (*children[:2], weight, routing.beta_u, routing.beta_a)
    usual = all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
    return usual and eligible(*tensors, operator=True)


def fits(routing: EM, children: Capsules | RoutingOutput, weight: Tensor) -> bool:
    """Whether `route` takes these shapes; others the plain twin may broadcast, or say what is wrong with them."""
    poses, activations = children.poses, children.activations
    return (
        poses.ndim == 3
        and poses.shape[1:] == (weight.shape[0], weight.shape[3])
        and activations.ndim == 2
        and all(found in (1, wanted) for found, wanted in zip(activations.shape, poses.shape[:2], strict=True))
        and routing.beta_u.shape == routing.beta_a.shape == weight.shape[1:2]
    )


def route(routing: EM, children: Capsules | RoutingOutput, weight: Float[Tensor, "i j d p"]) -> RoutingOutput:
    """What `routing(votes(poses, weight), activations)` returns."""
    poses, activations = _route(routing, children.poses, children.activations, weight, _dense(len(weight)))
    return RoutingOutput(poses.squeeze(1), activations.squeeze(1))


def route_windows(
    routing: EM,
    capsules: CapsuleMap,
    weight: Float[Tensor, "ky kx t j y x"],
    windows: Windows,
    matrix: bool,
    local: bool,
) -> CapsuleMap:
    """Convolutional capsules: `weight` has a transform for each place in a window."""
    layout = _windows(windows, capsules.poses.shape[1], local)
    poses, activations = _route(routing, *_by_position(capsules), weight.flatten(0, 2), layout, matrix)
    grid = (windows.rows, windows.columns)
    return CapsuleMap(
        poses.unflatten(1, grid).permute(0, 3, 1, 2, 4), activations.unflatten(1, grid).permute(0, 3, 1, 2)
    )


def route_shared(
    routing: EM, capsules: CapsuleMap, weight: Float[Tensor, "t j y x"], matrix: bool, added: Float[Tensor, "h w d"]
) -> RoutingOutput:
    """Class capsules: all positions share a transform for each type, and `added` tells their votes apart."""
    types, height, width = capsules.poses.shape[1:4]
    each = added[:, :, None].expand(-1, -1, types, -1).flatten(0, 2)
    layout = _shared(types, height * width)
    poses, activations = _route(routing, *_by_position(capsules), weight, layout, matrix, each)
    return RoutingOutput(poses.squeeze(1), activations.squeeze(1))


def peak_bytes(
    routing: EM,
    batch: int,
    weight: Float[Tensor, "ky kx t j y x"],
    windows: Windows,
    matrix: bool,
    local: bool,
    training: bool,
) -> int:
    """The most memory that `route_windows` has in use at once, forward and (in training) backward.

    Of the batch: children in another order, parents, and in training what is kept of every iteration, and all their
    gradients. Of each thread: votes of 8 parents of one window, and a few numbers for each assignment of one image.
    """
    transforms, side = weight.flatten(0, 2), weight.shape[-1]
    positions, types = windows.height * windows.width, weight.shape[2]
    poses = transforms.new_empty(batch, positions * types, side * side if matrix else side, device="meta")
    places = poses.new_empty(windows.count, len(transforms))
    n = em_operators.sizes(poses, transforms, places, routing.iterations, matrix, local)
    children, parents = poses.numel() + batch * n.children, batch * n.windows * n.parents * (n.dim + 1)
    if not training:
        return 4 * (children + parents + n.room(backward=False, keep=False))
    kept = sum(math.prod(shape) for shape in n.kept())
    gradients = children + parents + weight.numel()
    return 4 * (children + parents + kept + max(n.room(backward=False), gradients + n.room(backward=True)))


def _route(
    routing: EM,
    poses: Float[Tensor, "b c p"],
    activations: Float[Tensor, "b c"],
    weight: Float[Tensor, "m j y x"],
    layout: Layout,
    matrix: bool = False,
    added: Float[Tensor, "i d"] | None = None,
) -> tuple[Float[Tensor, "b n j d"], Float[Tensor, "b n j"]]:
    leaves = (poses, activations, weight, routing.beta_u, routing.beta_a)
    keep = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    operands = [leaf.contiguous() for leaf in (poses, activations.expand(poses.shape[:2]), *leaves[2:])]
    mean, activation, _, _ = em_operators.em_forward(
        *operands,
        layout.places,
        layout.owners,
        None if added is None else added.contiguous(),
        routing.inverse_temperatures(),
        [routing.density_scale] * routing.iterations,
        routing.variance_floor,
        NO_DATA,
        matrix,
        layout.local,
        keep,
    )
    return mean, activation


def _by_position(capsules: CapsuleMap) -> tuple[Float[Tensor, "b c p"], Float[Tensor, "b c"]]:
    """Children in the order `(y x t)`, in which the kernel leaves parents too: a stack of layers copies nothing."""
    return capsules.poses.permute(0, 2, 3, 1, 4).flatten(1, 3), capsules.activations.permute(0, 2, 3, 1).flatten(1)


@table
def _dense(children: int) -> Layout:
    each = torch.arange(children, dtype=torch.int32)
    return Layout(each[None], each)


@table
def _windows(windows: Windows, types: int, local: bool) -> Layout:
    positions = windows.positions().flatten(1)
    places = positions[:, :, None] * types + torch.arange(types)
    return Layout(places.flatten(1).int(), torch.arange(places[0].numel(), dtype=torch.int32), local)


@table
def _shared(types: int, positions: int) -> Layout:
    each = torch.arange(types * positions, dtype=torch.int32)
    return Layout(each[None], each % types)
