"""The capsule network of Sabour, Frosst and Hinton 2017 (Figures 1 and 2), at any size.

images [b c h w] -> backbone -> PrimaryCaps -> (ConvCaps) -> (hidden DenseCaps) -> DenseCaps, one capsule per class
-> decoder
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.functional import mask, present, standardise
from torchcaps.core.types import CapsuleMap, Capsules, ModelOutput, capsules_of
from torchcaps.data.sets import Batch
from torchcaps.models.backbones import make_backbone
from torchcaps.models.decoders import make_decoder
from torchcaps.models.hub import Pretrained
from torchcaps.models.window import Window
from torchcaps.nn.conv import ConvCaps
from torchcaps.nn.dense import DenseCaps
from torchcaps.nn.losses import RECIPES, RECONSTRUCTION_WEIGHT, margin_loss, reconstruction_loss, share_loss
from torchcaps.nn.primary import PrimaryCaps
from torchcaps.nn.transforms import deviation
from torchcaps.routing import Routing, RoutingChoice, options_of


@dataclass(frozen=True)
class CapsNetConfig:
    """The defaults are the paper's MNIST network; every field can be overridden."""

    image: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    objects: int = 1
    """Number of objects in an image: 2 for MultiMNIST."""
    window: int | None = None
    """Side in pixels of a window around the ink; if set, the network sees this window only."""
    standardise: bool = False
    """Bring what the network sees to mean 0 and variance 1: grey paper and faint ink then change little."""
    backbone: str | type[nn.Module] | nn.Module = "paper"
    """A name in `BACKBONES`, or any module from images to a feature map, such as a network of timm or torchvision."""
    channels: int = 256
    primary_types: int = 32
    primary_dim: int = 8
    conv: tuple[tuple[int, int, int, int], ...] = ()
    """Convolutional capsule layers above the primary capsules, each `(types, dim, kernel, stride)`."""
    conv_init_std: float | None = None
    """Deviation of their initial transforms; None is what the layers choose, which is for maps much larger than the
    kernel: on small ones a child reaches fewer parents, and poses begin too long."""
    hidden: tuple[tuple[Any, ...], ...] = ()
    """Routed layers between these and the classes, each `(capsules, dim)` or `(capsules, dim, routing)`."""
    dim: int = 16
    routing: RoutingChoice = "dynamic"
    routing_options: dict[str, Any] = field(default_factory=lambda: {"iterations": 3})
    decoder: tuple[int, ...] | Literal["conv"] | None = (512, 1024)
    """Hidden widths of the paper's decoder, or a convolutional one, or none for a network that does not reconstruct."""
    recipe: Literal["paper", "official"] = "paper"
    """`official` follows the authors' released code where it differs from the paper's text."""
    reconstruction_weight: float | None = None
    """Instead of the paper's."""


class CapsNet(Pretrained, nn.Module):
    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        self.config = config
        official = config.recipe == "official"
        self.window = Window(config.image, config.window) if config.window else None
        self.seen = (config.image[0], config.window, config.window) if config.window else config.image
        self.backbone = make_backbone(config.backbone, self.seen, config.channels)
        self.primary = PrimaryCaps(
            self.backbone.out_channels,
            config.primary_types,
            config.primary_dim,
            self.backbone.primary_kernel,
            self.backbone.primary_stride,
            norm=self.backbone.primary_norm,
            divide=config.primary_types + bool(config.routing_options.get("leaky")) if official else 1,
        )
        self.conv, self.grid = self._conv_layers(self._grid())
        self.hidden, self.classes = self._routed_layers()
        self.decoder = make_decoder(config.decoder, config.classes * config.dim, self.seen)
        if official:
            self._init_like_the_released_code()

    def _conv_layers(self, grid: tuple[int, int, int]) -> tuple[nn.Sequential, tuple[int, int, int]]:
        """Convolutional capsules, and types, rows and columns of the last of them."""
        config, layers = self.config, nn.Sequential()
        if (config.hidden or config.conv) and isinstance(config.routing, Routing):
            raise UserError("a routing instance fits one layer: with several layers, give its class or its name")
        (types, rows, columns), child_dim = grid, config.primary_dim
        for parents, dim, kernel, stride in config.conv:
            options: dict[str, Any] = {"init_std": config.conv_init_std, **config.routing_options}
            layers.append(ConvCaps(types, child_dim, parents, dim, kernel, stride, config.routing, **options))
            types, child_dim = parents, dim
            rows, columns = ((size - kernel) // stride + 1 for size in (rows, columns))
            if min(rows, columns) < 1:
                raise UserError(f"images of {self.seen[1:]} pixels are too small for this network")
        return layers, (types, rows, columns)

    def _routed_layers(self) -> tuple[nn.Sequential, DenseCaps]:
        config = self.config
        layers: list[DenseCaps] = []
        children, child_dim = math.prod(self.grid), config.conv[-1][1] if config.conv else config.primary_dim
        for parents, dim, *own in (*_checked(config.hidden), (config.classes, config.dim)):
            routing = own[0] if own else config.routing
            official = config.recipe == "official" and not isinstance(routing, Routing)
            bias = {"bias": True} if official and "bias" in options_of(routing) else {}
            options = {**({} if own else config.routing_options), **bias}
            # In a stack, poses must not become shorter from layer to layer.
            std = deviation(children, parents, dim, matrix=False) if config.hidden or config.conv else None
            layers.append(DenseCaps(children, child_dim, parents, dim, routing, init_std=std, **options))
            children, child_dim = parents, dim
        return nn.Sequential(*layers[:-1]), layers[-1]

    def _grid(self) -> tuple[int, int, int]:
        """Types, rows and columns of the primary capsules: capsule `i` is at `(type, y, x)` in this grid."""
        try:
            with torch.no_grad():
                shape = self.primary.conv(self.backbone.eval()(torch.zeros(1, *self.seen))).shape
        except RuntimeError:
            raise UserError(f"images of {self.seen[1:]} pixels are too small for this network") from None
        self.backbone.train()
        return self.config.primary_types, shape[2], shape[3]

    def forward(
        self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b *k"] | None = None, trace: bool = False
    ) -> ModelOutput:
        corner = self.corner(images)
        children = self.features(images, corner)
        output = self.classes(children, trace)
        pictures = self.reconstruct(output.poses, output.activations, labels, corner)
        return ModelOutput(output.activations, output.poses, children, pictures, output.trace)

    def corner(self, images: Float[Tensor, "b c h w"]) -> Int64[Tensor, "b 2"] | None:
        """Top and left of each image's window, if the network has one."""
        return None if self.window is None else self.window.corner(images)

    def features(self, images: Float[Tensor, "b c h w"], corner: Int64[Tensor, "b 2"] | None = None) -> Capsules:
        """The capsules that vote for the classes: the primary ones, unless there are layers between."""
        return capsules_of(self.hidden(self.capsule_map(images, corner)))

    def capsule_map(self, images: Float[Tensor, "b c h w"], corner: Int64[Tensor, "b 2"] | None = None) -> CapsuleMap:
        """The last capsules that have a place in the image, on a map of the size `grid`."""
        seen = images if self.window is None else self.window(images, corner)
        seen = standardise(seen) if self.config.standardise else seen
        return self.conv(self.primary(self.backbone(seen)))

    def put_back(
        self, pictures: Float[Tensor, "b k c y x"], corner: Int64[Tensor, "b 2"] | None = None
    ) -> Float[Tensor, "b k c h w"]:
        """Pictures of the window, placed on an empty image of full size."""
        return pictures if self.window is None else self.window.put_back(pictures, corner)

    def reconstruct(
        self,
        capsules: Float[Tensor, "b j d"],
        lengths: Float[Tensor, "b j"],
        labels: Int[Tensor, "b *k"] | None = None,
        corner: Int64[Tensor, "b 2"] | None = None,
    ) -> Float[Tensor, "b *k c h w"] | None:
        """The pictures that the decoder draws from the labels' capsules; without labels, from the longest capsules.

        `corner` is the place of the window in the original image; without it, the window is drawn in the middle.
        """
        if self.decoder is None:
            return None
        chosen = lengths.topk(self.config.objects, dim=1).indices if labels is None else labels
        several = chosen.ndim == 2 and not (labels is None and self.config.objects == 1)
        pictures = self.decoder(mask(capsules, chosen if chosen.ndim == 2 else chosen[:, None]))
        pictures = self.put_back(pictures, corner)
        return pictures if several else pictures[:, 0]

    def loss(self, output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """The parts of the loss, `total` among them."""
        there = present(batch.labels, self.config.classes)
        if self.classes.routing.shares:
            total = share_loss(output.lengths, there)
            found = {"likelihood": total}
        else:
            margin = margin_loss(output.lengths, there)
            total, found = RECIPES[self.config.recipe](self.config.classes) * margin, {"margin": margin}
        if output.reconstruction is None:
            return {"total": total, **found}
        pixels = reconstruction_loss(output.reconstruction, batch.targets)
        weight = self.config.reconstruction_weight
        weight = RECONSTRUCTION_WEIGHT if weight is None else weight
        return {"total": total + weight * pixels, **found, "reconstruction": pixels}

    def _init_like_the_released_code(self) -> None:
        """Truncated normal weights of deviation 0.1 (first convolution 0.05), biases of 0.1."""
        for name, module in self.named_modules():
            # The weights of somebody's own backbone stay as they are.
            if isinstance(module, nn.Conv2d) and not name.startswith("backbone.network"):
                std = 0.05 if name == "backbone.0" else 0.1
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                if module.bias is not None:
                    nn.init.constant_(module.bias, 0.1)


def _checked(hidden: Any) -> tuple[tuple[Any, ...], ...]:
    """The hidden layers, if each is `(capsules, dim)` or `(capsules, dim, routing)`."""
    layers = hidden if isinstance(hidden, tuple | list) else (hidden,)
    for layer in layers:
        sizes = layer[:2] if isinstance(layer, tuple | list) and len(layer) in (2, 3) else ()
        if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise UserError(
                f"hidden is a tuple of layers, each (capsules, dim) or (capsules, dim, routing), such as "
                f"((32, 8), (16, 8)); not {hidden!r}"
            )
    return tuple(map(tuple, layers))
