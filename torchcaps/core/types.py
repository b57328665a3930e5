"""The types that capsule layers exchange, and the letters of their axes.

b  batch                 i  child capsule        r  routing iteration
c  image channel         j  parent capsule       k  objects in one image (1; 2 for MultiMNIST)
h  height, w  width      d  pose dimension of a parent, p of a child
t  type of capsule, of which there is one at each position of a map
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.core.functional import length


class Capsules(NamedTuple):
    """A list of capsules. The pose describes an object or part, the activation says how likely it is present."""

    poses: Float[Tensor, "b i p"]
    activations: Float[Tensor, "b i"]


class CapsuleMap(NamedTuple):
    """Capsules of several types at every position of a map, for convolutional capsule layers.

    In the trace of a convolutional layer the batch axis is the windows, `(b y x)`, and the children are `(ky kx t)`.
    """

    poses: Float[Tensor, "b t h w p"]
    activations: Float[Tensor, "b t h w"]
    trace: "RoutingTrace | None" = None

    def flat(self) -> Capsules:
        """The same capsules as a list: child `i = (type · h + y) · w + x`."""
        return Capsules(self.poses.flatten(1, 3), self.activations.flatten(1))


class RoutingTrace(NamedTuple):
    """What happened inside a routing, iteration by iteration.

    The `couplings` of an iteration are computed from its `logits`; its `agreement` is computed last.
    """

    couplings: Float[Tensor, "r b i j"]
    logits: Float[Tensor, "r b i j"]
    agreement: Float[Tensor, "r b i j"]


class RoutingOutput(NamedTuple):
    """The parent capsules, and the trace if `trace=True`."""

    poses: Float[Tensor, "b j d"]
    activations: Float[Tensor, "b j"]
    trace: RoutingTrace | None = None


class ModelOutput(NamedTuple):
    """The output of every model; a CNN leaves the fields of capsules empty.

    `reconstruction` is `[b c h w]` for labels `[b]` or a single-object model without labels, `[b k c h w]` for labels
    `[b k]` or a model of several objects.
    """

    lengths: Float[Tensor, "b j"]
    capsules: Float[Tensor, "b j d"] | None = None
    children: Capsules | None = None
    """The capsules that voted for the classes: the primary ones, unless there are layers between."""
    reconstruction: Float[Tensor, "b *k c h w"] | None = None
    trace: RoutingTrace | None = None
    logits: Float[Tensor, "b j"] | None = None


def capsules_of(given: "Capsules | CapsuleMap | RoutingOutput | Tensor") -> Capsules:
    """What any layer returns, as a list of capsules. In a plain tensor, the activation is the length, at most 1."""
    given = _from_any(given)
    return given.flat() if isinstance(given, CapsuleMap) else Capsules(given.poses, given.activations)


def map_of(given: "Capsules | CapsuleMap | RoutingOutput | Tensor", layer: str) -> CapsuleMap:
    """What any layer returns, if its capsules are on a map; `layer` is the name of the layer that needs one."""
    given = _from_any(given)
    if isinstance(given, CapsuleMap):
        return given
    count, dim = given.poses.shape[1:]
    raise UserError(
        f"{layer} takes a map of capsules, the output of PrimaryCaps, PrimaryPoses or ConvCaps; it is given a list of "
        f"{count} capsules of {dim} numbers, for which DenseCaps({count}, {dim}, ...) would fit"
    )


def _from_any(given: object) -> Capsules | CapsuleMap | RoutingOutput:
    if isinstance(given, Capsules | CapsuleMap | RoutingOutput):
        return given
    if not isinstance(given, Tensor):
        raise UserError(
            f"a capsule layer takes Capsules, a CapsuleMap or a tensor of poses, not a {type(given).__name__}"
        )
    if given.ndim not in (3, 5):
        raise UserError(
            f"a tensor of capsules is [batch, capsule, pose] or [batch, type, row, column, pose], not "
            f"{list(given.shape)}; PrimaryCaps makes capsules of a feature map"
        )
    return (Capsules if given.ndim == 3 else CapsuleMap)(given, length(given).clamp(max=1))
