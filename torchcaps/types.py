"""What flows between capsule layers, and the letters that name its axes.

b  batch                 i  child capsule        r  routing iteration
c  image channel         j  parent capsule       k  things shown in one image (1; 2 for MultiMNIST)
h  height, w  width      d  pose dimension of a parent, p of a child
t  type of capsule, of which there is one at each position of a map
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Capsules(NamedTuple):
    """A layer of capsules: what each sees (its pose) and how sure it is that it is there (its activation)."""

    poses: Float[Tensor, "b i p"]
    activations: Float[Tensor, "b i"]


class CapsuleMap(NamedTuple):
    """Capsules of several types at every position: what convolutional capsule layers exchange.

    The trace of a convolutional layer has windows for its batch, `(b y x)`, and `(ky kx t)` for the children.
    """

    poses: Float[Tensor, "b t h w p"]
    activations: Float[Tensor, "b t h w"]
    trace: "RoutingTrace | None" = None

    def flat(self) -> Capsules:
        """Without the map: child `i = (type · h + y) · w + x`."""
        return Capsules(self.poses.flatten(1, 3), self.activations.flatten(1))

    @staticmethod
    def arranged(capsules: Capsules, types: int, height: int, width: int) -> "CapsuleMap":
        """The other way round, for the capsules of a `PrimaryCaps`."""
        grid = (types, height, width)
        return CapsuleMap(capsules.poses.unflatten(1, grid), capsules.activations.unflatten(1, grid))


class RoutingTrace(NamedTuple):
    """What happened inside a routing, iteration by iteration.

    `logits` are the ones an iteration's `couplings` were computed from; `agreement` is what the iteration found.
    """

    couplings: Float[Tensor, "r b i j"]
    logits: Float[Tensor, "r b i j"]
    agreement: Float[Tensor, "r b i j"]


class RoutingOutput(NamedTuple):
    """The parents' capsules, and the trace if it was asked for."""

    poses: Float[Tensor, "b j d"]
    activations: Float[Tensor, "b j"]
    trace: RoutingTrace | None = None


class ModelOutput(NamedTuple):
    """What every model answers with; a CNN fills in what it has.

    `reconstruction` is `[b c h w]` for labels `[b]` or a single-object model without labels, `[b k c h w]` for labels
    `[b k]` or a model of several objects.
    """

    lengths: Float[Tensor, "b j"]
    capsules: Float[Tensor, "b j d"] | None = None
    reconstruction: Float[Tensor, "b *k c h w"] | None = None
    trace: RoutingTrace | None = None
    logits: Float[Tensor, "b j"] | None = None
