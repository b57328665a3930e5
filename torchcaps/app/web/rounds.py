"""The last routing of a network, as the page shows it: who votes, and what each round of routing would answer."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.functional import coupling_entropy, votes
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.matrix import MatrixCaps
from torchcaps.routing import Routing

ROUNDS = 5


def can_be_shown(model: nn.Module) -> bool:
    """Whether each vote comes from a place in the image: capsules of a hidden layer have none."""
    return isinstance(model, MatrixCaps) or (isinstance(model, CapsNet) and not model.hidden)


def voting(model: CapsNet | MatrixCaps, images: Float[Tensor, "b c h w"]) -> tuple[Capsules, Float[Tensor, "b i j d"]]:
    """The children of the class capsules, and their votes."""
    if isinstance(model, CapsNet):
        children, weight = model.features(images), model.classes.weight
    else:
        children, weight = model.classes.placed(model.features(images)), model.classes.transforms()
    return children, votes(children.poses, weight)


def rounds(routing: Routing, made: Float[Tensor, "b i j d"], children: Capsules) -> list[RoutingOutput]:
    """Routings of 1, 2, ... rounds, each with its trace; one that does not repeat is a single round.

    The first rounds do not depend on how many follow, so that each can be shown as a routing of its own.
    """
    found: list[RoutingOutput] = []
    for count in range(1, ROUNDS + 1):
        one = copy.copy(routing)
        one.iterations = count
        output = one(made, children, trace=True)
        if output.trace is None or len(output.trace.couplings) != count:
            return found or [output]
        found.append(output)
    return found


def spread(couplings: Float[Tensor, "b i j"], activations: Float[Tensor, "b i"]) -> Float[Tensor, "b"]:
    """Among how many parents a child divides its vote, averaged over the children by how active they are."""
    shares = activations / activations.sum(1, keepdim=True)
    return torch.einsum("bi,bi->b", coupling_entropy(couplings).exp(), shares)
