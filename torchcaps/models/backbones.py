"""Networks from pixels to the feature map that the primary capsules are made of."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import unfold

from torchcaps.core.errors import UserError
from torchcaps.kernels import convolution
from torchcaps.nn.norm import BatchNorm


class PaperBackbone(nn.Sequential):
    """One 9x9 convolution with ReLU; the primary capsules follow with another 9x9 of stride 2."""

    primary_kernel, primary_stride, primary_norm = 9, 2, False

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        super().__init__(nn.Conv2d(image[0], channels, 9), nn.ReLU())
        self.out_channels = channels


class PaddedPaperBackbone(nn.Sequential):
    """The same with zeros around both maps, as the authors' code for CIFAR-10 has it: no border is lost.

    With a stride of 2, TensorFlow pads one pixel more below and to the right than above and to the left.
    """

    primary_kernel, primary_stride, primary_norm = 9, 2, False

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        _, h, w = image
        (top, bottom), (left, right) = (_around(side) for side in (h, w))
        super().__init__(
            nn.Conv2d(image[0], channels, 9, padding=4), nn.ReLU(), nn.ZeroPad2d((left, right, top, bottom))
        )
        self.out_channels = channels


def _around(side: int) -> tuple[int, int]:
    """Zeros before and after, so that a kernel of 9 and a stride of 2 give half as many positions, rounded up."""
    missing = 2 * (-(-side // 2) - 1) + 9 - side
    return missing // 2, missing - missing // 2


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


class Whitening(nn.Conv2d):
    """Patches whitened, each direction with both signs: filters from the training images that are not trained.

    They are the leading eigenvectors of the patches' covariance, divided by their deviation. Until `fit_to` has seen
    images they are random. Every gradient above them is then as if pixels were independent and of equal variance.
    """

    def __init__(self, inputs: int, kernel: int, stride: int, directions: int = 12) -> None:
        super().__init__(inputs, 2 * min(directions, inputs * kernel * kernel), kernel, stride)
        self.weight.requires_grad_(False)

    @property
    def fitted(self) -> bool:
        first, second = self.weight.chunk(2)
        return torch.equal(first, -second)

    @torch.no_grad()
    def fit_to(self, images: Float[Tensor, "b c h w"]) -> None:
        patches = unfold(images, self.kernel_size, stride=self.stride).permute(0, 2, 1).flatten(0, 1)
        variances, directions = torch.linalg.eigh(patches.double().T.cov())
        kept = self.out_channels // 2
        scaled = (directions / (variances + 5e-4).sqrt()).flip(1)[:, :kept].T.view(kept, *self.weight.shape[1:])
        self.weight.copy_(torch.cat([scaled, -scaled]))
        nn.init.zeros_(self.bias)  # pyright: ignore


def whiten(network: nn.Module, images: Float[Tensor, "b c h w"]) -> None:
    """Fit every `Whitening` inside a network to these images, as they reach it, unless it was fitted before."""

    def fit(part: Any, given: tuple[Tensor, ...]) -> None:
        part.fit_to(*given)

    parts = [part for part in network.modules() if isinstance(part, Whitening) and not part.fitted]
    if hooks := [part.register_forward_pre_hook(fit) for part in parts]:
        with torch.no_grad():
            network.eval()(images)
        network.train()
    for hook in hooks:
        hook.remove()


class PhotoBackbone(nn.Sequential):
    """For photographs: whitened patches, then three pairs of 3x3 convolutions, each pair with a pooling.

    After Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024. Larger images have larger patches, and more
    convolutions of stride 2 below the pairs: these begin at 20 to 40 pixels a side, whatever the image has, and end on
    a grid of about 3x3.
    """

    primary_kernel, primary_stride, primary_norm = 1, 1, True

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        c, h, w = image
        apart = 2 if max(h, w) > 40 else 1
        first = Whitening(c, 2 * apart, apart, 12 * apart)
        super().__init__(first, nn.ReLU())
        inputs, (least, most) = first.out_channels, (side // apart - 1 for side in sorted((h, w)))
        while most > 40:
            self.append(_Block(inputs, channels // 4, 3, 2, 1))
            inputs, least, most = channels // 4, -(-least // 2), -(-most // 2)
        for outputs in (channels // 4, channels, channels):
            self.append(_Block(inputs, outputs, 3, 1, 1, pool=least > 1))
            self.append(_Block(outputs, outputs, 3, 1, 1))
            inputs, least = outputs, least // 2
        self.out_channels = channels


BACKBONES = {
    "paper": PaperBackbone,
    "paper-padded": PaddedPaperBackbone,
    "compact": CompactBackbone,
    "fine": FineBackbone,
    "photo": PhotoBackbone,
}


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
) -> PaperBackbone | PaddedPaperBackbone | CompactBackbone | FineBackbone | PhotoBackbone | ForeignBackbone:
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
