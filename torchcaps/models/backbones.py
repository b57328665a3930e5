"""What turns pixels into the features that primary capsules are made of."""

from torch import nn

from torchcaps.layers import BatchNorm


class PaperBackbone(nn.Sequential):
    """One 9x9 convolution with ReLU; the primary capsules follow with another 9x9 of stride 2."""

    primary_kernel, primary_stride, primary_norm = 9, 2, False

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        super().__init__(nn.Conv2d(image[0], channels, 9), nn.ReLU())
        self.out_channels = channels


def _block(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, BatchNorm(outputs), nn.ReLU())


class CompactBackbone(nn.Sequential):
    """A few narrow convolutions for small images: the most accuracy for a minute of a laptop's time.

    Folding 2x2 pixels into channels first keeps the large, thin feature maps, which a CPU handles worst, out of it.
    """

    primary_kernel, primary_stride, primary_norm = 3, 1, True

    def __init__(self, image: tuple[int, int, int], channels: int) -> None:
        c, h, w = image
        super().__init__(
            nn.ZeroPad2d((0, w % 2, 0, h % 2)),
            nn.PixelUnshuffle(2),
            _block(4 * c, channels // 4, 3, 1, 1),
            _block(channels // 4, channels // 2, 4, 2),
            _block(channels // 2, channels, 3, 1, 1),
            _block(channels, channels, 3, 1, 1),
        )
        self.out_channels = channels


BACKBONES = {"paper": PaperBackbone, "compact": CompactBackbone}
