"""Dynamic routing by agreement.

Sabour, Frosst and Hinton, "Dynamic routing between capsules", NIPS 2017, Procedure 1:

    b[i,j] ← log prior
    repeat r times:  c[i] ← softmax over j of b[i]          (Eq. 3)
                     s[j] ← Σ_i c[i,j] û[j|i] (+ bias[j])   (Eq. 2)
                     v[j] ← squash(s[j])                    (Eq. 1)
                     b[i,j] ← b[i,j] + û[j|i] · v[j]

Differs from the paper in nothing by default. The last update of b is left out unless it is traced, since nothing reads
it. `learn_priors` and `leaky` are the paper's own options (sections 2 and 7); `bias` is in the authors' code only.
`gradient="last"` holds the couplings constant in the backward pass, as many public versions do: cheaper, and not the
gradient of the function that is computed.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.functional import length, squash
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.routing.base import Competition, Recorder, Routing, VoteShape, couplings, positive

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
    ) -> None:
        super().__init__()
        if gradient not in ("full", "last"):
            raise ValueError(f"gradient must be 'full' or 'last', not {gradient!r}")
        self.iterations, self.gradient, self.leaky = positive(iterations), gradient, leaky
        self.log_priors = nn.Parameter(torch.zeros(shape.children, shape.parents)) if learn_priors else None
        self.bias = nn.Parameter(torch.full((shape.parents, shape.dim), 0.1)) if bias else None

    def forward(
        self,
        votes: Float[Tensor, "b i j d"],
        children: Capsules,
        *,
        competition: Competition | None = None,
        trace: bool = False,
    ) -> RoutingOutput:
        """The children's activations are not used: a vector capsule's votes already carry its length."""
        u_hat = votes
        b = u_hat.new_zeros(u_hat.shape[:3])
        if self.log_priors is not None:
            b = b + self.log_priors
        recorder = Recorder(trace)
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
                b = b + agreement
        return RoutingOutput(v, length(v), recorder.trace())

    def extra_repr(self) -> str:
        return f"iterations={self.iterations}, gradient={self.gradient!r}, leaky={self.leaky}"
