"""Decoders: from the class capsules, all but one set to zero, to a picture."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

Image = tuple[int, int, int]


class DenseDecoder(nn.Module):
    """Fully connected layers (Figure 2 of Sabour et al. 2017)."""

    def __init__(self, inputs: int, hidden: tuple[int, ...], image: Image) -> None:
        super().__init__()
        self.image = image
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.Linear(inputs, image[0] * image[1] * image[2]), nn.Sigmoid())

    def forward(self, masked: Float[Tensor, "b k jd"]) -> Float[Tensor, "b k c h w"]:
        return self.layers(masked).unflatten(-1, self.image)


class ConvDecoder(nn.Module):
    """Fully connected layers to a coarse map, then convolutions to a tile of pixels for each position of the map.

    Sharper than the dense decoder after the same number of images, because its weights are shared between positions.
    Tiles have 4x4 pixels, or more if the map would be wider than 10 positions.
    """

    def __init__(self, inputs: int, image: Image, width: int = 256) -> None:
        super().__init__()
        c, h, w = image
        self.image = image
        tile = 4
        while tile * 10 < max(h, w):
            tile *= 2
        coarse = (16, -(-h // tile), -(-w // tile))
        self.layers = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(),
            nn.Linear(width, coarse[0] * coarse[1] * coarse[2]), nn.ReLU(),
            nn.Unflatten(1, coarse),
            nn.Conv2d(coarse[0], 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, c * tile * tile, 3, padding=1), nn.PixelShuffle(tile), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, masked: Float[Tensor, "b k jd"]) -> Float[Tensor, "b k c h w"]:
        _, h, w = self.image
        pictures = self.layers(masked.flatten(0, 1))[:, :, :h, :w]
        return pictures.unflatten(0, masked.shape[:2])


def make_decoder(
    design: tuple[int, ...] | Literal["conv"] | None, inputs: int, image: Image
) -> DenseDecoder | ConvDecoder | None:
    if design is None:
        return None
    return ConvDecoder(inputs, image) if design == "conv" else DenseDecoder(inputs, design, image)
