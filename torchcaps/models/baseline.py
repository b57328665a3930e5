"""The convolutional networks that the paper measures capsules against (sections 5, 5.2 and 6.2)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from torchcaps.core.errors import UserError
from torchcaps.core.functional import present, standardise
from torchcaps.core.types import ModelOutput
from torchcaps.data.sets import Batch
from torchcaps.models.backbones import CompactBackbone, FineBackbone, PhotoBackbone
from torchcaps.models.hub import Pretrained
from torchcaps.models.window import Window
from torchcaps.nn.norm import BatchNorm


@dataclass(frozen=True)
class CNNConfig:
    image: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    objects: int = 1
    design: Literal[
        "mnist",
        "multimnist",
        "affnist",
        "affnist-small",
        "compact",
        "fine",
        "photo",
        "smallnorb",
        "smallnorb-small",
        "smallnorb-norm",
    ] = "mnist"
    window: int | None = None
    standardise: bool = False
    channels: int | None = None
    """These three as in the capsule network whose backbone it shares."""
    label_smoothing: float = 0.0
    """The share of the target that is spread over all classes, for one object in an image."""


def _mnist(image: tuple[int, int, int]) -> list[nn.Module]:
    """Section 5: 256, 256 and 128 channels of 5x5, stride 1, then 328 and 192 units, dropout before the softmax."""
    return [
        nn.Conv2d(image[0], 256, 5, padding="same"), nn.ReLU(),
        nn.Conv2d(256, 256, 5, padding="same"), nn.ReLU(),
        nn.Conv2d(256, 128, 5, padding="same"), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(328), nn.ReLU(), nn.Linear(328, 192), nn.ReLU(), nn.Dropout(0.5),
    ]  # fmt: skip


def _multimnist(image: tuple[int, int, int]) -> list[nn.Module]:
    """Section 6.2: 512 of 9x9, pool, 256 of 5x5, pool, 1024 units. Tuned by the authors for the best accuracy."""
    return [
        nn.Conv2d(image[0], 512, 9, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(512, 256, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(1024), nn.ReLU(),
    ]  # fmt: skip


def _affnist(
    image: tuple[int, int, int], widths: tuple[int, int, int] = (64, 128, 256), hidden: int = 1900
) -> list[nn.Module]:
    """Section 5.2: "with MaxPooling and DropOut", as large as the CapsNet; the paper gives no further detail."""
    first, second, third = widths
    return [
        nn.Conv2d(image[0], first, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(second, third, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(hidden), nn.ReLU(), nn.Dropout(0.5),
    ]  # fmt: skip


def _affnist_small(image: tuple[int, int, int]) -> list[nn.Module]:
    """The same with as many parameters as the small CapsNet."""
    return _affnist(image, (32, 64, 96), 370)


def _compact(image: tuple[int, int, int], channels: int = 128, backbone: Any = CompactBackbone) -> list[nn.Module]:
    """The backbone of the small capsule networks, and a hidden layer where those have their capsules."""
    return [
        backbone(image, channels),
        nn.Conv2d(channels, 64, 3, bias=False), BatchNorm(64), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(512), nn.ReLU(),
    ]  # fmt: skip


def _fine(image: tuple[int, int, int], channels: int = 160) -> list[nn.Module]:
    return _compact(image, channels, FineBackbone)


def _photo(image: tuple[int, int, int], channels: int = 128) -> list[nn.Module]:
    """The backbone of the capsule networks for photographs, of each channel the largest value."""
    return [PhotoBackbone(image, channels), nn.AdaptiveMaxPool2d(1), nn.Flatten()]


class Standardise(nn.Module):
    """Each image to mean 0 and variance 1, as for the matrix capsules."""

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return standardise(images)


def _smallnorb(
    image: tuple[int, int, int], channels: tuple[int, int] = (32, 64), hidden: int = 1024
) -> list[nn.Module]:
    """Hinton et al. 2018, section 5: 32 and 64 channels of 5x5, each with 2x2 max pooling, 1024 units, dropout."""
    first, second = channels
    return [
        Standardise(),
        nn.Conv2d(image[0], first, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(hidden), nn.ReLU(), nn.Dropout(0.5),
    ]  # fmt: skip


def _smallnorb_small(image: tuple[int, int, int]) -> list[nn.Module]:
    """The same with as many parameters as the smaller matrix capsules."""
    return _smallnorb(image, (16, 16), 60)


def _smallnorb_norm(image: tuple[int, int, int]) -> list[nn.Module]:
    """As many parameters again, spent as one would today: small kernels, batch normalisation, an average at the end."""
    layers: list[nn.Module] = [Standardise()]
    inputs = image[0]
    for outputs, pooled in ((24, False), (32, True), (48, False), (48, True), (56, False)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding="same", bias=False), BatchNorm(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pooled else []
        inputs = outputs
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()]


DESIGNS = {
    "mnist": _mnist,
    "multimnist": _multimnist,
    "affnist": _affnist,
    "affnist-small": _affnist_small,
    "compact": _compact,
    "fine": _fine,
    "photo": _photo,
    "smallnorb": _smallnorb,
    "smallnorb-small": _smallnorb_small,
    "smallnorb-norm": _smallnorb_norm,
}


class CNN(Pretrained, nn.Module):
    """Softmax and cross entropy for one object per image, independent sigmoids for several."""

    def __init__(self, config: CNNConfig) -> None:
        super().__init__()
        self.config = config
        seen, before = config.image, []
        if config.window:
            seen, before = (config.image[0], config.window, config.window), [Window(config.image, config.window)]
        before += [Standardise()] if config.standardise else []
        width = {"channels": config.channels} if config.channels else {}
        self.layers = nn.Sequential(*before, *DESIGNS[config.design](seen, **width), nn.LazyLinear(config.classes))
        try:
            with torch.no_grad():
                self.layers.eval()(torch.zeros(1, *config.image))
                self.layers.train()
        except RuntimeError:
            raise UserError(f"images of {config.image[1:]} pixels are too small for this network") from None

    def forward(
        self, images: Float[Tensor, "b c h w"], labels: Int[Tensor, "b *k"] | None = None, trace: bool = False
    ) -> ModelOutput:
        logits = self.layers(images)
        return ModelOutput(logits.softmax(1) if self.config.objects == 1 else logits.sigmoid(), logits=logits)

    def loss(self, output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
        assert output.logits is not None
        if self.config.objects == 1:
            smoothing = self.config.label_smoothing
            return {"total": cross_entropy(output.logits, batch.labels[:, 0], label_smoothing=smoothing)}
        targets = present(batch.labels, self.config.classes)
        return {"total": binary_cross_entropy_with_logits(output.logits, targets, reduction="none").sum(1).mean()}
