"""EM routing: each parent is a Gaussian, and the children are the data that it explains.

Hinton, Sabour and Frosst, "Matrix capsules with EM routing", ICLR 2018, Procedure 1:

    R[i,j] ← 1 / parents that i reaches
    repeat t times:
      M-step   r[i,j] ← R[i,j] a[i]
               μ[j] ← Σ_i r[i,j] V[i,j] / Σ_i r[i,j]
               σ²[j] ← Σ_i r[i,j] (V[i,j] - μ[j])² / Σ_i r[i,j]
               cost[j,h] ← (β_u[j] + log σ[j,h]) Σ_i r[i,j]
               a'[j] ← sigmoid(λ (β_a[j] - Σ_h cost[j,h]))
      E-step   R[i,:] ← softmax over j of  log a'[j] + log N(V[i,j]; μ[j], σ²[j])
    return μ, a'

Differs from the paper in what it leaves open, following Gritzman, "Avoiding implementation pitfalls of matrix capsules
with EM routing", 2019, and the authors' own code:

- The data of a parent, `Σ_i r[i,j]`, grows with the number of children, so one β and one λ would suit no two layers.
  In the cost it is divided by what fully active, evenly assigned children would bring, `Σ_i R[i,j]` of the first
  iteration: 1 is an average parent's share, whatever the layer. The children's activations stay in it.
- A variance has a floor, which is added: one child alone would have none, and a density without bound.
- λ is `(1 - 0.95^(t+1))`, the authors' schedule times the 100 data points a parent has in Gritzman's normalisation.
  Its last value depends on the number of iterations, and with it the β that suits it; `normalised` divides by it.
- The E-step stays in logarithms; nothing is exponentiated before it is normalised.
- β_u = 1 and β_a = -15 at the start: a parent without data has an activation near 0.1 at the last λ, not 0.5. From
  zero, the β_a that lets a class be absent is a thousand steps of Adam away, and nothing is learned until then.

Three iterations as they stand hardly learn: the gradient is long, and differs from batch to batch. What it took:
`density_scale` 1/4, initial transforms of identity + 0.3 N, gradients clipped at a norm of 5, and below the capsules
small convolutions with batch normalisation instead of one large convolution (`matrix-smallnorb-stem`). On crops in
which the toys are whole, 1,500 steps of 32 images then suffice for 99 % of the training images of norb-style. Toys that
it never saw it still knows less well than a CNN of its size does: docs/log.md has the numbers.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings, positive

# Added to a parent's data before dividing by it: a parent that no child turns to has its mean at zero, not at 0 / 0.
NO_DATA = 1e-12


class EM(Routing):
    """`beta_u` is a parent's cost of a child, `beta_a` of being there at all.

    `density_scale` is a factor on log N in the E-step: below 1, children decide less sharply between parents.
    `inverse_temperature` is a factor on λ; with `normalised` it is the last λ, whatever the number of iterations (three
    of them end at 0.142625 without it).

    Votes must not vanish beside the variance floor, or every parent looks sure of itself and nothing is learned.
    """

    init_std = 1.0

    def __init__(
        self,
        shape: VoteShape,
        *,
        iterations: int = 3,
        inverse_temperature: float = 1.0,
        normalised: bool = False,
        density_scale: float = 1.0,
        variance_floor: float = 5e-4,
    ) -> None:
        super().__init__()
        if min(inverse_temperature, density_scale, variance_floor) <= 0:
            raise ValueError("inverse_temperature, density_scale and variance_floor must be more than 0")
        self.iterations, self.inverse_temperature = positive(iterations), inverse_temperature
        self.normalised = normalised
        self.density_scale, self.variance_floor = density_scale, variance_floor
        self.beta_u = nn.Parameter(torch.full((shape.parents,), 1.0))
        self.beta_a = nn.Parameter(torch.full((shape.parents,), -15.0))

    def inverse_temperatures(self) -> list[float]:
        """λ of every iteration."""
        last = 1 - 0.95**self.iterations if self.normalised else 1.0
        return [self.inverse_temperature * (1 - 0.95 ** (t + 1)) / last for t in range(self.iterations)]

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        a = children.activations
        logits = votes.new_zeros(votes.shape[:3])
        R = couplings(logits, competition=competition)
        even = R.sum(1)
        mean = activation = a.new_empty(0)
        for t, inverse_temperature in enumerate(self.inverse_temperatures()):
            r = R * a.unsqueeze(2)
            data = r.sum(1)
            shares = r / (data + NO_DATA).unsqueeze(1)
            mean = torch.einsum("bij,bijd->bjd", shares, votes)
            variance = torch.einsum("bij,bijd->bjd", shares, (votes - mean.unsqueeze(1)).square())
            variance = variance + self.variance_floor
            log_sigma = variance.log() / 2
            cost = (self.beta_u * log_sigma.shape[2] + log_sigma.sum(2)) * (data / even)
            scaled = inverse_temperature * (self.beta_a - cost)
            activation = scaled.sigmoid()
            if t < self.iterations - 1 or recorder:
                distances = torch.einsum("bijd,bjd->bij", (votes - mean.unsqueeze(1)).square(), 0.5 / variance)
                log_density = -(distances + _offset(log_sigma))
                agreement = logsigmoid(scaled).unsqueeze(1) + self.density_scale * log_density
                recorder.add(R, logits, agreement)
                logits, R = agreement, couplings(agreement, competition=competition)
        return mean, activation


def _offset(log_sigma: Float[Tensor, "b j d"]) -> Float[Tensor, "b 1 j"]:
    """The logarithm of a Gaussian's normalising constant."""
    return (log_sigma + math.log(2 * math.pi) / 2).sum(2).unsqueeze(1)
