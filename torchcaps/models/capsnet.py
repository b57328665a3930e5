"""The capsule network of Sabour, Frosst and Hinton 2017 (Figures 1 and 2), at any size.

images [b c h w] -> backbone -> PrimaryCaps -> DenseCaps with a routing -> one capsule per class -> decoder
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from torchcaps.data.sets import Batch
from torchcaps.errors import UserError
from torchcaps.functional import mask, present
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.losses import RECIPES, margin_loss, reconstruction_loss
from torchcaps.models.backbones import BACKBONES
from torchcaps.models.decoders import make_decoder
from torchcaps.models.hub import Pretrained
from torchcaps.models.window import Window
from torchcaps.routing import options_of
from torchcaps.types import Capsules, ModelOutput


@dataclass(frozen=True)
class CapsNetConfig:
    """The defaults are the paper's MNIST network; every field can be overridden."""

    image: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    digits: int = 1
    """How many things one image shows: 2 for MultiMNIST."""
    window: int | None = None
    """Pixels a side of the part around the ink, where that is all it looks at."""
    backbone: Literal["paper", "compact", "natural"] = "paper"
    channels: int = 256
    primary_types: int = 32
    primary_dim: int = 8
    dim: int = 16
    routing: str = "dynamic"
    routing_options: dict[str, Any] = field(default_factory=lambda: {"iterations": 3})
    decoder: tuple[int, ...] | Literal["conv"] | None = (512, 1024)
    """Hidden widths of the paper's decoder, or a convolutional one, or none for a network that does not reconstruct."""
    recipe: Literal["paper", "official"] = "paper"
    """`official` follows the authors' released code where it differs from the paper's text."""
    reconstruction_weight: float | None = None
    """Instead of the recipe's own."""


class CapsNet(Pretrained, nn.Module):
    def __init__(self, config: CapsNetConfig) -> None:
        super().__init__()
        self.config = config
        official = config.recipe == "official"
        self.window = Window(config.image, config.window) if config.window else None
        self.seen = (config.image[0], config.window, config.window) if config.window else config.image
        self.backbone = BACKBONES[config.backbone](self.seen, config.channels)
        self.primary = PrimaryCaps(
            self.backbone.out_channels,
            config.primary_types,
            config.primary_dim,
            self.backbone.primary_kernel,
            self.backbone.primary_stride,
            norm=self.backbone.primary_norm,
            divide=config.primary_types if official else 1,
        )
        self.grid = self._grid()
        bias = {"bias": True} if official and "bias" in options_of(config.routing) else {}
        options = {**config.routing_options, **bias}
        children = self.grid[0] * self.grid[1] * self.grid[2]
        self.classes = DenseCaps(children, config.primary_dim, config.classes, config.dim, config.routing, **options)
        self.decoder = make_decoder(config.decoder, config.classes * config.dim, self.seen)
        if official:
            self._init_like_the_released_code()

    def _grid(self) -> tuple[int, int, int]:
        """Types, rows and columns of the primary capsules: child `i` is at `(type, y, x)` in this grid."""
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
        output = self.classes(self.features(images, corner), trace)
        pictures = self.reconstruct(output.poses, output.activations, labels, corner)
        return ModelOutput(output.activations, output.poses, pictures, output.trace)

    def corner(self, images: Float[Tensor, "b c h w"]) -> Int64[Tensor, "b 2"] | None:
        """Top and left of the window through which it looks at each image, if it does."""
        return None if self.window is None else self.window.corner(images)

    def features(self, images: Float[Tensor, "b c h w"], corner: Int64[Tensor, "b 2"] | None = None) -> Capsules:
        """The primary capsules."""
        return self.primary(self.backbone(images if self.window is None else self.window(images, corner)))

    def put_back(
        self, pictures: Float[Tensor, "b k c y x"], corner: Int64[Tensor, "b 2"] | None = None
    ) -> Float[Tensor, "b k c h w"]:
        """What was drawn of the window, on an image of full size."""
        return pictures if self.window is None else self.window.put_back(pictures, corner)

    def reconstruct(
        self,
        capsules: Float[Tensor, "b j d"],
        lengths: Float[Tensor, "b j"],
        labels: Int[Tensor, "b *k"] | None = None,
        corner: Int64[Tensor, "b 2"] | None = None,
    ) -> Float[Tensor, "b *k c h w"] | None:
        """What the labels' capsules see, or the longest capsules where no labels are given.

        `corner` is of the image that they come from; without it, the window is in the middle.
        """
        if self.decoder is None:
            return None
        chosen = lengths.topk(self.config.digits, dim=1).indices if labels is None else labels
        several = chosen.ndim == 2 and not (labels is None and self.config.digits == 1)
        pictures = self.decoder(mask(capsules, chosen if chosen.ndim == 2 else chosen[:, None]))
        pictures = self.put_back(pictures, corner)
        return pictures if several else pictures[:, 0]

    def loss(self, output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        """The parts of the loss, `total` among them."""
        recipe = RECIPES[self.config.recipe]
        margin = margin_loss(output.lengths, present(batch.labels, self.config.classes))
        total = recipe.margin_weight(self.config.classes) * margin
        if output.reconstruction is None:
            return {"total": total, "margin": margin}
        pixels = reconstruction_loss(output.reconstruction, batch.targets)
        weight = self.config.reconstruction_weight
        weight = recipe.reconstruction if weight is None else weight
        return {"total": total + weight * pixels, "margin": margin, "reconstruction": pixels}

    def _init_like_the_released_code(self) -> None:
        """Truncated normal weights of deviation 0.1 (first convolution 0.05), biases of 0.1."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                std = 0.05 if name == "backbone.0" else 0.1
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                if module.bias is not None:
                    nn.init.constant_(module.bias, 0.1)
