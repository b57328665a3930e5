"""Inverted dot-product attention routing: a parent's pose asks, the children's votes compete for it.

Tsai, Srivastava, Goh and Salakhutdinov, "Capsules with inverted dot-product attention routing", ICLR 2020, Algorithm 1:

    a[i,j] = p[j] · v[i,j] / √d                         agreement of the parent's pose with the vote; at first 0
    r[i]   = softmax over j of a[i]
    p[j]   = LayerNorm(Σ_i r[i,j] v[i,j])

Attention with its softmax inverted: over the queries (parents), not the keys (children). Differs from the paper: √d is
in the authors' code only; of one layer at a time, iterations are sequential (the paper's concurrent ones update several
layers together). A layer-normalised pose has no length to speak of, so that the paper reads classes off with a linear
layer shared by all class capsules and a softmax; here the same layer has a logistic, since an image may show several:

    activation[j] = σ(w · p[j] + β)
"""

import torch
from torch import nn

from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings, positive


class InvertedDotProduct(Routing):
    def __init__(self, shape: VoteShape, *, iterations: int = 2) -> None:
        super().__init__()
        self.iterations = positive(iterations)
        self.norm = nn.LayerNorm(shape.dim)
        self.presence = nn.Linear(shape.dim, 1)

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        """The children's activations are not used: as in the paper, a capsule is its pose."""
        v = votes
        a = v.new_zeros(v.shape[:3])
        p = v[:, 0]
        for iteration in range(self.iterations):
            r = couplings(a, competition=competition)
            p = self.norm(torch.einsum("bij,bijd->bjd", r, v))
            if iteration < self.iterations - 1 or recorder:
                agreement = torch.einsum("bijd,bjd->bij", v, p) / v.shape[-1] ** 0.5
                recorder.add(r, a, agreement)
                a = agreement
        return p, self.presence(p)[..., 0].sigmoid()
