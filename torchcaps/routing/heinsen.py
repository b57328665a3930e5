"""Heinsen routing: a parent is paid for the data it uses and charged for the data it ignores.

Heinsen, "An algorithm for routing capsules in all domains", 2019, Algorithm 1 (not the later one of 2022 for vectors in
sequences). EM routing whose parents are activated by the net benefit of the children they explain:

    E   R[i] = softmax over j of ln f(a[j]) + ln P[i,j]             at first uniform
        ln P[i,j] = κ (−Σ_d (v[i,j] − μ[j])² / 2σ²[j] − ½ Σ_d ln σ²[j])
    D   D_use[i,j] = f(a[i]) R[i,j]        D_ign[i,j] = f(a[i]) − D_use[i,j]
    M   a[j]  = Σ_i β_use[i,j] D_use[i,j] − Σ_i β_ign[i,j] D_ign[i,j]
        μ[j]  = Σ_i D_use[i,j] v[i,j] / Σ_i D_use[i,j]
        σ²[j] = Σ_i D_use[i,j] (v[i,j] − μ[j])² / Σ_i D_use[i,j]

f is the logistic function; β_use and β_ign are learned. Differs from the paper: a child's activation is f(a) already,
since layers here hand on probabilities, not scores; votes have no bias.

β starts as N(0, 0.1²). The author's code of 2019 has zeros: with these every parent is half active whatever its votes
are, and no gradient reaches the votes and the layers below. His code of 2022 draws normals too.

κ (`density_scale`) is 1 in the paper and 1/4 here. With 1, children decide so sharply between parents of 16 numbers
that a step realises a tenth of the drop that its gradient promises.
"""

import torch
from torch import nn
from torch.nn.functional import logsigmoid

from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings, positive

EPSILON = 1e-5
"""The author's, added to variances and to amounts of data: a parent of equal votes has no narrower Gaussian."""


class Heinsen(Routing):
    def __init__(self, shape: VoteShape, *, iterations: int = 3, density_scale: float = 0.25) -> None:
        super().__init__()
        self.iterations, self.density_scale = positive(iterations), density_scale
        self.beta_use = nn.Parameter(0.1 * torch.randn(shape.children, shape.parents))
        self.beta_ign = nn.Parameter(0.1 * torch.randn(shape.children, shape.parents))

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        v = votes
        f_a = children.activations
        logits = v.new_zeros(v.shape[:3])
        mu, score = v[:, 0], v[:, 0, :, 0]
        for iteration in range(self.iterations):
            R = couplings(logits, competition=competition)
            used = f_a.unsqueeze(-1) * R
            score = (self.beta_use * used - self.beta_ign * (f_a.unsqueeze(-1) - used)).sum(1)
            share = used / (used.sum(1, keepdim=True) + EPSILON)
            mu = torch.einsum("bij,bijd->bjd", share, v)
            if iteration < self.iterations - 1 or recorder:
                squared = (v - mu.unsqueeze(1)).square()
                variance = torch.einsum("bij,bijd->bjd", share, squared) + EPSILON
                log_p = -0.5 * torch.einsum("bijd,bjd->bij", squared, 1 / variance)
                log_p = log_p - 0.5 * variance.log().sum(-1).unsqueeze(1)
                found = self.density_scale * log_p + logsigmoid(score).unsqueeze(1)
                recorder.add(R, logits, found)
                logits = found
        return mu, score.sigmoid()
