"""Matrix capsules with EM routing: the network of Hinton, Sabour and Frosst 2018 (Figure 1), at any size.

images [b c h w] -> 5x5 convolution A -> primary capsules B -> ConvCaps C -> ConvCaps D -> one capsule per class
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import dropout

from torchcaps.core.errors import UserError
from torchcaps.core.functional import standardise
from torchcaps.core.types import CapsuleMap, ModelOutput
from torchcaps.data.sets import Batch
from torchcaps.models.hub import Pretrained
from torchcaps.nn.classes import ClassCaps
from torchcaps.nn.conv import ConvCaps
from torchcaps.nn.losses import spread_loss
from torchcaps.nn.norm import BatchNorm
from torchcaps.nn.primary import PrimaryPoses
from torchcaps.routing import Routing, RoutingChoice


@dataclass(frozen=True)
class MatrixConfig:
    """The defaults are the paper's smallNORB network; A, B, C and D are its letters."""

    image: tuple[int, int, int] = (2, 32, 32)
    classes: int = 5
    objects: int = 1
    channels: int = 32
    """A: of the convolution."""
    norm: bool = False
    """Batch normalisation of the convolutions, before their ReLU; the paper has none."""
    stem: tuple[tuple[int, int, int], ...] | None = None
    """Channels, kernel and stride of several convolutions instead of the one with 5x5 pixels and stride 2."""
    primary_types: int = 32
    """B."""
    activation_init: tuple[float, float] | None = None
    """How the primary activations begin, as in `PrimaryPoses`."""
    dropout: float = 0.0
    """The share of primary capsules that are absent in training: their activation is 0, so that they are no data. The
    activations of the others are divided by 1 - dropout."""
    types: tuple[int, ...] = (32, 32)
    """C and D: of the convolutional capsule layers, of which the first has stride 2 and the others 1."""
    kernel: int = 3
    side: int = 4
    """A pose is a matrix of side x side."""
    routing: RoutingChoice = "em"
    routing_options: dict[str, Any] = field(default_factory=lambda: {"iterations": 3})
    init_std: float | None = None
    """Deviation of the initial transforms around the identity; None is what the layers choose."""
    local: bool = False
    """Let every window share out its children by itself, instead of all parents competing for a child."""
    margin: tuple[float, float] = (0.2, 0.9)
    """Of the spread loss, at the beginning and at the end of a training."""
    margin_schedule: Literal["linear", "sigmoid"] = "linear"
    """How the margin grows. `sigmoid` is the authors' curve, a logistic from -4 to 10: they take 700,000 steps for it,
    here it takes the whole budget."""


class MatrixCaps(Pretrained, nn.Module):
    def __init__(self, config: MatrixConfig) -> None:
        super().__init__()
        if config.objects != 1:
            raise UserError(f"matrix capsules find one object in an image, not {config.objects}")
        if isinstance(config.routing, Routing):
            raise UserError("a routing instance fits one layer: for matrix capsules, give its class or its name")
        self.config = config
        self.margin = config.margin[1]
        dim = config.side**2
        shared: dict[str, Any] = {"matrix": True, "init_std": config.init_std, **config.routing_options}
        self.backbone = nn.Sequential()
        channels, height, width = config.image
        for outputs, kernel, stride in config.stem or ((config.channels, 5, 2),):
            norm = [BatchNorm(outputs)] if config.norm else []
            self.backbone.extend([nn.Conv2d(channels, outputs, kernel, stride, bias=not config.norm), *norm, nn.ReLU()])
            channels, height, width = outputs, *((size - kernel) // stride + 1 for size in (height, width))
        self.primary = PrimaryPoses(channels, config.primary_types, dim, activation_init=config.activation_init)
        self.layers = nn.Sequential()
        types = config.primary_types
        for n, parents in enumerate(config.types):
            stride = 2 if n == 0 else 1
            self.layers.append(
                ConvCaps(types, dim, parents, dim, config.kernel, stride, config.routing, local=config.local, **shared)
            )
            types, height, width = parents, *((size - config.kernel) // stride + 1 for size in (height, width))
        if min(height, width) < 1:
            raise UserError(f"images of {config.image[1:]} pixels are too small for this network")
        self.classes = ClassCaps((types, height, width), dim, config.classes, dim, config.routing, **shared)

    def features(self, images: Float[Tensor, "b c h w"]) -> CapsuleMap:
        """The children of the class capsules."""
        capsules = self.primary(self.backbone(standardise(images)))
        if self.training and self.config.dropout:
            capsules = capsules._replace(activations=dropout(capsules.activations, self.config.dropout))
        return self.layers(capsules)

    def forward(
        self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b *k"] | None = None, trace: bool = False
    ) -> ModelOutput:
        children = self.features(images)
        output = self.classes(children, trace)
        return ModelOutput(output.activations, output.poses, children.flat(), trace=output.trace)

    def schedule(self, progress: float) -> None:
        """The margin grows during training, so that few capsules become inactive at the start."""
        low, high = self.config.margin
        part = min(1.0, progress)
        if self.config.margin_schedule == "sigmoid":
            part = 1 / (1 + math.exp(4 - 14 * part))
        self.margin = low + (high - low) * part

    def loss(self, output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        return {"total": spread_loss(output.lengths, batch.labels[:, 0], self.margin)}
