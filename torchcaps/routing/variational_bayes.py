"""Variational Bayes routing: a parent is a Gaussian over votes, and how sure one can be of it counts.

Ribeiro, Leontidis and Kollias, "Capsule routing via variational Bayes", AAAI 2020, Algorithm 1: a mixture of Gaussians
with Dirichlet and Gaussian-Wishart priors (α₀ = 1, m₀ = 0, κ₀ = 1, Ψ₀ = I, ν₀ = d + 1), here with a diagonal precision
Λ = diag(λ), of which each λ_d has a one-dimensional Wishart. With R[i,j] = r[i,j] a[i] and N[j] = Σ_i R[i,j]:

    α = α₀ + N        κ = κ₀ + N        ν = ν₀ + N        m[j] = Σ_i R[i,j] v[i,j] / κ
    Ψ[j]⁻¹ = 1 + Σ_i R[i,j] (v[i,j] − m[j])² + κ₀ m[j]²
    ln ρ[i,j] = E ln π + ½ E ln|Λ| − ½ d ln 2π − ½ (d / κ + ν Σ_d Ψ (v[i,j] − m[j])²)
         with E ln π = ψ(α) − ψ(Σ_j α)  and  E ln|Λ| = Σ_d (ψ(ν / 2) + ln 2 + ln Ψ)
    r[i] = softmax over j of ln ρ[i]                         at first uniform
    activation[j] = σ(β[j] − γ exp(E ln π) H[j])             H = ½ d ln 2πe − ½ E ln|Λ|, the Gaussian's entropy

The sum in Ψ⁻¹ is the usual S + κ₀ N / κ (v̄ − m₀)² written around m, which needs no division by N. Differs from the
paper: exact conjugate updates for a diagonal Λ where the authors' code takes the digammas of a full one; in place of
batch normalisation of poses and activations, which would make an image's answer depend on its neighbours, the learned
offset β (the paper's β_a − β_u) and gain γ.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings, positive

LOG_TWO_PI = math.log(2 * math.pi)


class Posterior(NamedTuple):
    """What is known about each parent after looking at its share of the votes."""

    mean: Float[Tensor, "b j d"]
    precision: Float[Tensor, "b j d"]
    kappa: Float[Tensor, "b j"]
    log_precision: Float[Tensor, "b j"]
    log_mixing: Float[Tensor, "b j"]


class VariationalBayes(Routing):
    def __init__(self, shape: VoteShape, *, iterations: int = 3) -> None:
        super().__init__()
        self.iterations = positive(iterations)
        self.offset = nn.Parameter(torch.zeros(shape.parents))
        self.gain = nn.Parameter(torch.ones(()))

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        v, d = votes, votes.shape[-1]
        a = children.activations
        log_rho = v.new_zeros(v.shape[:3])
        q = None
        for iteration in range(self.iterations):
            r = couplings(log_rho, competition=competition)
            q = posterior(v, r * a.unsqueeze(-1))
            if iteration < self.iterations - 1 or recorder:
                found = log_responsibility(v, q)
                recorder.add(r, log_rho, found)
                log_rho = found
        assert q is not None
        entropy = 0.5 * (d * (LOG_TWO_PI + 1) - q.log_precision)
        presence = torch.sigmoid(self.offset - self.gain * q.log_mixing.exp() * entropy)
        return q.mean, presence


def posterior(v: Votes, R: Float[Tensor, "b i j"]) -> Posterior:
    """The M-step: the parents' distributions, given who belongs to them."""
    d, N = v.shape[-1], R.sum(1)
    alpha, kappa, nu = 1 + N, 1 + N, d + 1 + N
    m = torch.einsum("bij,bijd->bjd", R, v) / kappa.unsqueeze(-1)
    inverse_psi = 1 + torch.einsum("bij,bijd->bjd", R, (v - m.unsqueeze(1)).square()) + m.square()
    return Posterior(
        mean=m,
        precision=nu.unsqueeze(-1) / inverse_psi,
        kappa=kappa,
        log_precision=d * (torch.digamma(nu / 2) + math.log(2)) - inverse_psi.log().sum(-1),
        log_mixing=torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True)),
    )


def log_responsibility(v: Votes, q: Posterior) -> Float[Tensor, "b i j"]:
    """The E-step, ln ρ: how well each parent explains each vote, in expectation."""
    d = v.shape[-1]
    distance = torch.einsum("bijd,bjd->bij", (v - q.mean.unsqueeze(1)).square(), q.precision)
    parent = q.log_mixing + 0.5 * (q.log_precision - d * LOG_TWO_PI - d / q.kappa)
    return parent.unsqueeze(1) - 0.5 * distance
