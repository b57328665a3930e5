"""Votes of a few images at a time.

Convolutional capsules have tens of times more votes than children, and a routing keeps several tensors of their size
for the backward pass. Images are independent, so they are taken in blocks: votes are made, routed and forgotten, and
made again when the gradient comes by. What this costs in operations it gains in cache.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.kernels.tuning import traced
from torchcaps.routing import EM, Competition, Routing, VoteShape

# Of the votes of a block; at least one image's, because all its windows share their children.
BLOCK_BYTES = {"cpu": 1 << 23, "cuda": 1 << 27}


def route(
    routing: Routing,
    children: Capsules,
    weight: Float[Tensor, "i j d p"],
    *,
    competition: Competition | None = None,
    trace: bool = False,
    together: int = 1,
) -> RoutingOutput:
    """`routing(votes(poses, weight), children)`; the `together` rows of one image, its windows, are never parted."""

    def routed(children: Capsules) -> RoutingOutput:
        return routing(votes(children.poses, weight), children, competition=competition, trace=trace)

    if trace or traced() or children.poses.device.type == "meta":
        return routed(children)
    rows = len(children.poses)
    votes_of_a_row = weight.shape[:3].numel() * weight.element_size()
    size = block_rows(rows, together, votes_of_a_row, weight.device)
    if size >= rows:
        return routed(children)
    parts = map(Capsules, children.poses.split(size), children.activations.split(size))
    outputs: list[RoutingOutput] = [
        checkpoint(routed, part, use_reentrant=False) if torch.is_grad_enabled() else routed(part) for part in parts
    ]  # pyright: ignore[reportAssignmentType]
    poses = torch.cat([output.poses for output in outputs])
    return RoutingOutput(poses, torch.cat([output.activations for output in outputs]))


def block_rows(rows: int, together: int, votes_of_a_row: int, device: torch.device) -> int:
    """How many rows of the batch make a block: a multiple of `together`, the windows of one image."""
    budget = BLOCK_BYTES.get(device.type, BLOCK_BYTES["cuda"])
    return min(rows, max(1, budget // (votes_of_a_row * together)) * together)


def peak_bytes(routing: Routing, rows: int, together: int, shape: VoteShape, training: bool, number: int = 4) -> int:
    """The most memory that `route` has in use at once, forward and (in training) backward, of numbers of 4 bytes.

    Of the whole batch: children and parents, and the gradients of the children. Of one block: tensors of the votes'
    size, and several of the logits' size in each iteration. Counts are those of EM and of dynamic routing; others are
    taken for the latter.
    """
    i, j, d, p = shape
    block = block_rows(rows, together, i * j * d * number, torch.device("cpu"))
    votes, logits = block * i * j * d, block * i * j
    children, parents = rows * i * (p + 1), rows * j * (d + 1)
    iterations = routing.iterations
    if isinstance(routing, EM):
        inside = 3 * votes + 6 * logits
        if training:
            inside = (2 + 4 * iterations) * votes + (2 + 3 * iterations) * logits
    else:
        inside = votes + 6 * logits
        if training:
            inside = (2 if iterations == 1 else 4) * votes + 3 * iterations * logits
    return number * (inside + (2 if training else 1) * children + parents)
