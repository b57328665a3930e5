"""Networks from pixels to the feature map that the primary capsules are made of."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.kernels import convolution
from torchcaps.nn.norm import BatchNorm


class PaperBackbone(nn.Sequential):
    """One 9x9 convolution with ReLU; the primary capsules follow with another 9x9 of stride 2."""

    primary_kernel, primary_stride, primary_norm = 9, 2, False

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        super().__init__(nn.Conv2d(image[0], channels, 9), nn.ReLU())
        self.out_channels = channels


class _Block(nn.Sequential):
    """Convolution, perhaps max pooling of 2x2 pixels, batch normalisation, ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, *, pool: bool = False
    ) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        super().__init__(conv, BatchNorm(outputs), nn.ReLU())
        self.pool = pool

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o yh yw"]:
        conv, norm, _ = self
        return norm.with_relu(convolution.convolve(conv, input), self.pool)  # pyright: ignore


class _Pool(nn.MaxPool2d):
    """2x2 max pooling that keeps the memory layout of its input."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c y x"]:
        h, w = input.shape[2] // 2 * 2, input.shape[3] // 2 * 2
        rows = torch.maximum(input[:, :, 0:h:2], input[:, :, 1:h:2])
        return torch.maximum(rows[..., 0:w:2], rows[..., 1:w:2])


class CompactBackbone(nn.Sequential):
    """A few narrow convolutions for small images, chosen for accuracy after a minute of training on a laptop.

    The first layer folds 2x2 pixels into channels: feature maps that are large and have few channels are slow on a CPU.
    """

    primary_kernel, primary_stride, primary_norm = 3, 1, True

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        c, h, w = image
        super().__init__(
            nn.ZeroPad2d((0, w % 2, 0, h % 2)),
            nn.PixelUnshuffle(2),
            _Block(4 * c, channels // 4, 3, 1, 1),
            _Block(channels // 4, channels // 2, 4, 2),
            _Block(channels // 2, channels, 3, 1, 1),
            _Block(channels, channels, 3, 1, 1),
        )
        self.out_channels = channels


class FineBackbone(nn.Sequential):
    """Its first two layers see every pixel: where digits overlap, a stroke of two pixels tells them apart.

    It learns from half as many pairs of digits as the compact one does, and takes 1.4 times as long for each.
    """

    primary_kernel, primary_stride, primary_norm = 3, 1, True

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        super().__init__(
            _Block(image[0], channels // 10, 3, 1, 1),
            _Block(channels // 10, channels // 5, 3, 1, 1, pool=True),
            _Block(channels // 5, channels // 2, 4, 2),
            _Block(channels // 2, channels, 3, 1, 1),
            _Block(channels, channels, 3, 1, 1),
        )
        self.out_channels = channels


class _Residual(nn.Module):
    """A 3x3 convolution whose output is added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.change = _Block(channels, channels, 3, 1, 1)

    def forward(self, features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        return features + self.change(features)


class NaturalBackbone(nn.Sequential):
    """A small residual network for photographs, which need more layers below the capsules than digits do.

    Blocks of stride 2 bring an image of any size to at most 20 pixels a side, where most of the computation is done;
    after two poolings the primary capsules are on a grid of about 4x4.
    """

    primary_kernel, primary_stride, primary_norm = 1, 1, True

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        c, h, w = image
        layers: list[nn.Module] = [nn.ZeroPad2d((0, w % 2, 0, h % 2)), nn.PixelUnshuffle(2)]
        side, inputs = -(-max(h, w) // 2), 4 * c
        while side > 20:
            layers.append(_Block(inputs, channels // 8, 3, 2, 1))
            side, inputs = -(-side // 2), channels // 8
        super().__init__(
            *layers,
            _Block(inputs, channels // 4, 3, 1, 1),
            _Block(channels // 4, channels // 2, 3, 1, 1),
            _Pool(),
            _Residual(channels // 2),
            _Block(channels // 2, channels, 3, 1, 1),
            _Residual(channels),
            _Pool(),
            _Residual(channels),
        )
        self.out_channels = channels


BACKBONES = {"paper": PaperBackbone, "compact": CompactBackbone, "fine": FineBackbone, "natural": NaturalBackbone}


class ForeignBackbone(nn.Module):
    """Any network below the capsules: its feature map, the last of its maps, or its vector as a map of 1x1.

    A network without a trainable parameter is frozen: it stays in evaluation mode, also while the capsules train.
    """

    primary_kernel, primary_stride, primary_norm = 1, 1, True

    def __init__(self, network: nn.Module, image: tuple[int, int, int]) -> None:
        super().__init__()
        self.network = network
        try:
            with torch.no_grad():
                self.out_channels = self.eval()(torch.zeros(1, *image)).shape[1]
        except UserError:
            raise
        except Exception as error:  # networks report a wrong size in many ways: timm's with AssertionError
            name, reason = type(network).__name__, (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"the backbone {name} does not take images of {list(image)}: {reason}") from None
        self.train()

    def train(self, mode: bool = True) -> "ForeignBackbone":
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.network.parameters()):
            self.network.eval()
        return self

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o y x"]:
        features = self.network(images)
        features = features[-1] if isinstance(features, list | tuple) else features
        if not isinstance(features, Tensor) or features.ndim not in (2, 4):
            got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(
                f"a backbone returns [batch, channel, row, column], a list of such maps, or [batch, channel], not {got}"
            )
        return features if features.ndim == 4 else features[:, :, None, None]


def make_backbone(
    backbone: str | type[nn.Module] | nn.Module, image: tuple[int, int, int], channels: int
) -> PaperBackbone | CompactBackbone | FineBackbone | NaturalBackbone | ForeignBackbone:
    """A backbone by name, as a module, or as a class of modules without arguments; `channels` is for the named ones."""
    if isinstance(backbone, type) and issubclass(backbone, nn.Module):
        try:
            backbone = backbone()
        except TypeError as error:
            raise UserError(f"the backbone {backbone.__name__} needs arguments ({error}): give an instance") from None
    if isinstance(backbone, nn.Module):
        return ForeignBackbone(backbone, image)
    if not isinstance(backbone, str) or backbone not in BACKBONES:
        raise UserError(f"unknown backbone {backbone!r}; there are {', '.join(BACKBONES)}, or give an nn.Module")
    return BACKBONES[backbone](image, channels)
