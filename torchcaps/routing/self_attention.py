"""Self-attention routing: votes that agree with each other decide, in one pass.

Mazzia, Salvetti and Chiaberge, "Efficient-CapsNet: capsule network with self-attention routing", Scientific Reports
2021, Eqs. 4 to 8:

    A[j,i,k] = û[j|i] · û[j|k] / √d                     agreement of children i and k about parent j
    c[i]     = softmax over j of Σ_k A[j,i,k]
    s[j]     = Σ_i (c[i,j] + B[i,j]) û[j|i]             B: learned log priors, from zero
    v[j]     = (1 − exp(−|s|)) s / |s|                  steeper near zero than the squash of Sabour et al.

Differs from the paper in nothing. Σ_k A[j,i,k] is computed as û[j|i] · Σ_k û[j|k], without the children × children
matrix. The paper adds B to the couplings, not to the logits: the trace shows `c`, what the image decided, and B is the
same for every image. The paper's network has 16 children; with hundreds the logits grow alike, and the softmax becomes
a choice of one parent.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.functional import length
from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape, couplings


class SelfAttention(Routing):
    def __init__(self, shape: VoteShape, *, learn_priors: bool = True) -> None:
        super().__init__()
        self.log_priors = nn.Parameter(torch.zeros(shape.children, shape.parents)) if learn_priors else None

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        """The children's activations are not used: a vector capsule's votes already carry its length."""
        u_hat = votes
        logits = torch.einsum("bijd,bjd->bij", u_hat, u_hat.sum(1)) / u_hat.shape[-1] ** 0.5
        c = couplings(logits, competition=competition)
        weights = c if self.log_priors is None else c + self.log_priors
        v = exponential_squash(torch.einsum("bij,bijd->bjd", weights, u_hat))
        if recorder:
            recorder.add(c, logits, torch.einsum("bijd,bjd->bij", u_hat, v))
        return v, length(v)


def exponential_squash(s: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """Eq. 8: same direction, length `1 − exp(−|s|)`.

    >>> exponential_squash(torch.tensor([3.0, 4.0])).norm().item()  # 1 - exp(-5)
    0.99326...
    """
    n = length(s).unsqueeze(-1)
    return s * (-torch.expm1(-n) / n)
