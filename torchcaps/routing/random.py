"""Random couplings, drawn once and kept: a control that is sparser than `uniform`, and knows as little.

    b[i,j] ~ N(0, scale²)                      once, when the layer is made
    c[i]   = softmax over j of b[i]
    v[j]   = squash(Σ_i c[i,j] û[j|i])

After Paik, Kwak and Kim, "Capsule networks need an improved routing algorithm", ACML 2019, who assign children to
parents at random. The logits are a buffer: they are saved with the weights and never learned. They come from torch's
random numbers, so that the seed of a training decides them with everything else, or from a `seed` of their own.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.core.types import Capsules
from torchcaps.routing.base import Competition, Parents, Recorder, Routing, Votes, VoteShape
from torchcaps.routing.uniform import one_pass


class Random(Routing):
    logits: Float[Tensor, "i j"]

    def __init__(self, shape: VoteShape, *, scale: float = 1.0, seed: int | None = None) -> None:
        super().__init__()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.register_buffer("logits", scale * torch.randn(shape.children, shape.parents, generator=generator))

    def route(self, votes: Votes, children: Capsules, competition: Competition | None, recorder: Recorder) -> Parents:
        """The children's activations are not used: a vector capsule's votes already carry its length."""
        return one_pass(votes, self.logits.expand(votes.shape[:3]), competition, recorder)
