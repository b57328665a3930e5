"""Uniform couplings: no routing at all, the control that every routing has to beat.

    c[i,j] = 1 / parents
    v[j]   = squash(Σ_i c[i,j] û[j|i])

This is the first pass of dynamic routing and nothing else. Paik, Kwak and Kim, "Capsule networks need an improved
routing algorithm", ACML 2019, found such couplings as good as those of the routings of their time; Gu and Tresp,
"Improving the robustness of capsule networks to image affine transformations", CVPR 2020, train without routing.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.core.functional import length, squash
from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings


class Uniform(Routing):
    def __init__(self, shape: VoteShape) -> None:
        super().__init__()

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        """The children's activations are not used: a vector capsule's votes already carry its length."""
        return one_pass(votes, votes.new_zeros(votes.shape[:3]), competition, recorder)


def one_pass(u_hat: Votes, b: Float[Tensor, "b i j"], competition: Competition | None, recorder: Recorder) -> Parents:
    """Parents for couplings that do not depend on the votes."""
    c = couplings(b, competition=competition)
    v = squash(torch.einsum("bij,bijd->bjd", c, u_hat))
    if recorder:
        recorder.add(c, b, torch.einsum("bijd,bjd->bij", u_hat, v))
    return v, length(v)
