"""Self-routing: each child decides by itself where it belongs, without looking at anybody's votes.

Hahn, Pyeon and Kim, "Self-routing capsule networks", NeurIPS 2019, Eqs. 4 to 7:

    c[i] = softmax over j of W[i] u[i]                   W: a routing matrix of each child
    a[j] = Σ_i c[i,j] a[i] / Σ_i a[i]
    p[j] = Σ_i c[i,j] a[i] û[j|i] / Σ_i c[i,j] a[i]

A mixture of experts with the children as gates; no agreement and no iterations. The activations are shares: over all
parents they sum to one, and the loss is their negative log likelihood, as in the authors' code; of an image of two
things each should have one half.

Differs from the paper in 1e-12 in the denominators. W starts as N(0, 1), on which the paper is silent. The authors'
code has zeros and a bias in the softmax: with these all shares are equal whatever the children are, and no gradient
reaches the layers below. Its poses are normalised over the batch and not squashed, so that W need not grow far to
decide; in a CapsNet poses are at most 1 long.
"""

import torch
from torch import nn

from torchcaps.core.functional import EPSILON
from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings


class SelfRouting(Routing):
    shares = True

    def __init__(self, shape: VoteShape) -> None:
        super().__init__()
        if not shape.child_dim:
            raise ValueError("self-routing reads the children's poses: VoteShape needs their child_dim")
        self.weight = nn.Parameter(torch.randn(shape.children, shape.parents, shape.child_dim))

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        a = children.activations
        logits = torch.einsum("bip,ijp->bij", children.poses, self.weight)
        c = couplings(logits, competition=competition)
        share = c * a.unsqueeze(-1)
        total = share.sum(1)
        p = torch.einsum("bij,bijd->bjd", share, votes) / (total.unsqueeze(-1) + EPSILON)
        if recorder:
            recorder.add(c, logits, torch.einsum("bijd,bjd->bij", votes, p))
        return p, total / (a.sum(1, keepdim=True) + EPSILON)
