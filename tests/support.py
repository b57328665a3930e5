"""Small things that several tests need."""

from torch import Tensor

from torchcaps.core.types import Capsules


def children_of(votes: Tensor, activations: Tensor | None = None) -> Capsules:
    """Children for votes that come from nowhere: poses of one zero, fully active unless told otherwise."""
    b, i = votes.shape[:2]
    return Capsules(votes.new_zeros(b, i, 1), votes.new_ones(b, i) if activations is None else activations)
