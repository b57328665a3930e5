"""How a routing brings the votes for a class together, iteration by iteration."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.core.functional import votes
from torchcaps.models.matrix import MatrixCaps


class VoteDistances(NamedTuple):
    """The distance of every vote from the mean of its class capsule after each iteration, and its assignment to it.

    `assignments` are those that the iteration's E-step gives, so they belong to the same iteration as the mean.
    """

    distances: Float[Tensor, "r b i j"]
    assignments: Float[Tensor, "r b i j"]
    lengths: Float[Tensor, "b j"]


@torch.no_grad()
def vote_distances(model: MatrixCaps, images: Float[Tensor, "b c h w"]) -> VoteDistances:
    """For Figure 2 of Hinton et al. 2018."""
    layer = model.classes
    children = layer.placed(model.features(images))
    made = votes(children.poses, layer.transforms())
    output = layer.routing(made, children, trace=True)
    assert output.trace is not None
    distances = []
    for couplings in output.trace.couplings:
        data = couplings * children.activations.unsqueeze(2)
        mean = torch.einsum("bij,bijd->bjd", data / data.sum(1, keepdim=True).clamp(min=1e-12), made)
        distances.append((made - mean.unsqueeze(1)).norm(dim=3))
    return VoteDistances(torch.stack(distances), output.trace.agreement.softmax(3), output.activations)
