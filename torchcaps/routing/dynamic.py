"""Dynamic routing by agreement.

Sabour, Frosst and Hinton, "Dynamic routing between capsules", NIPS 2017, Procedure 1:

    b[i,j] ← log prior
    repeat r times:  c[i] ← softmax over j of b[i]          (Eq. 3)
                     s[j] ← Σ_i c[i,j] û[j|i] (+ bias[j])   (Eq. 2)
                     v[j] ← squash(s[j])                    (Eq. 1)
                     b[i,j] ← b[i,j] + β û[j|i] · v[j]

Differs from the paper in nothing by default. The last update of b is left out unless it is traced, since nothing reads
it. `learn_priors` and `leaky` are the paper's own options (sections 2 and 7); `bias` is in the authors' code only.
`gradient="last"` holds the couplings constant in the backward pass, as many public versions do: cheaper, and not the
gradient of the function that is computed. β is the `sharpness`, 1 in the paper. In a small network with a hundred
children a parent is the sum of short votes, which agree with it by little: couplings stay even, and three iterations do
what one does. A sharpness of about the number of parents lets the routing decide.
"""

from typing import Literal

import torch
from torch import nn

from torchcaps.core.functional import length, squash
from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings, positive

Gradient = Literal["full", "last"]


class Dynamic(Routing):
    def __init__(
        self,
        shape: VoteShape,
        *,
        iterations: int = 3,
        gradient: Gradient = "full",
        learn_priors: bool = False,
        leaky: bool = False,
        bias: bool = False,
        sharpness: float = 1.0,
    ) -> None:
        super().__init__()
        if gradient not in ("full", "last"):
            raise ValueError(f"gradient must be 'full' or 'last', not {gradient!r}")
        if not 0 < sharpness < float("inf"):
            raise ValueError(f"sharpness must be a positive number, not {sharpness!r}")
        self.sharpness = float(sharpness)
        self.iterations, self.gradient, self.leaky = positive(iterations), gradient, leaky
        self.log_priors = nn.Parameter(torch.zeros(shape.children, shape.parents)) if learn_priors else None
        self.bias = nn.Parameter(torch.full((shape.parents, shape.dim), 0.1)) if bias else None

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        """The children's activations are not used: a vector capsule's votes already carry its length."""
        u_hat = votes
        b = u_hat.new_zeros(u_hat.shape[:3])
        if self.log_priors is not None:
            b = b + self.log_priors
        v = u_hat[:, 0]
        for r in range(self.iterations):
            is_last = r == self.iterations - 1
            u = u_hat if is_last or self.gradient == "full" else u_hat.detach()
            c = couplings(b, self.leaky, competition)
            s = torch.einsum("bij,bijd->bjd", c, u)
            v = squash(s if self.bias is None else s + self.bias)
            if not is_last or recorder:
                agreement = torch.einsum("bijd,bjd->bij", u, v if self.gradient == "full" else v.detach())
                recorder.add(c, b, agreement)
                b = b + self.sharpness * agreement
        return v, length(v)
