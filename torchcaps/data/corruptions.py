"""Fixed ways to spoil an image, to see what a network's answers bear.

Images are floats from 0 to 1, `[b c h w]`, of any size and number of channels; strokes are bright on a dark ground.
What is random comes from a generator for each image, so that an image is spoilt alike in whatever batch it comes.
Names and amounts are in the table `CORRUPTIONS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data.sets import Batch, ScoredSet, generator_for
from torchcaps.data.transforms import affine, affine_matrices, bounding_boxes, narrower, place, wider

SEED = 15
"""Of everything that is random here; it has no other use."""
Images = Float[Tensor, "b c h w"]
Generators = Sequence[Generator]


def grey_pixel(images: Images, generators: Generators, value: float = 0.2) -> Images:
    """The pixel in one of the four corners, each equally likely, is set to `value` in all channels."""
    corners = _each(generators, lambda g: torch.randint(2, (2,), generator=g))
    spoilt = images.clone()
    y, x = (corners * (torch.tensor(images.shape[2:]) - 1)).unbind(1)
    spoilt[torch.arange(len(images)), :, y, x] = value
    return spoilt


def specks(images: Images, generators: Generators, share: float = 0.005) -> Images:
    """Each pixel is set to 1 in all channels with the probability `share`, independently."""
    white = _each(generators, lambda g: torch.rand(1, *images.shape[2:], generator=g)) < share
    return images.masked_fill(white, 1.0)


def noise(images: Images, generators: Generators, deviation: float = 0.05) -> Images:
    """Normal noise is added to every value, and what leaves the range from 0 to 1 is cut off."""
    added = _each(generators, lambda g: torch.randn(images.shape[1:], generator=g))
    return (images + deviation * added).clamp(0, 1)


def contrast(images: Images, generators: Generators, factor: float = 0.5) -> Images:
    """Every value is brought towards the darkest of its image: the ground stays, the strokes are `factor` as bright."""
    darkest = images.amin((1, 2, 3), keepdim=True)
    return darkest + factor * (images - darkest)


def background(images: Images, generators: Generators, value: float = 0.12) -> Images:
    """All values are brought into the range from `value` to 1: a black ground becomes grey, white stays white."""
    return value + (1 - value) * images


def rotation(images: Images, generators: Generators, degrees: float = 15.0) -> Images:
    """The image is turned about its middle, clockwise or the other way, with bilinear sampling; outside it is 0."""
    side = 2 * _each(generators, lambda g: torch.randint(2, (1,), generator=g))[:, 0] - 1
    none, one = torch.zeros(len(images)), torch.ones(len(images), 2)
    return affine(images, affine_matrices(degrees * side, none, one, 0 * one))


def cut_off(images: Images, generators: Generators, share: float = 0.1) -> Images:
    """What is shown is moved over the border on one of the four sides, until `share` of its length is outside.

    What is shown is the box around all values above the middle between the darkest and the brightest of the image.
    """
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    first, last = bounding_boxes((images > (low + high) / 2).any(1)).view(-1, 2, 2).unbind(1)
    sides = torch.tensor(images.shape[2:])
    lost = (share * (last - first)).round().long()
    to_start, to_end = -first - lost, sides - last + lost
    border = _each(generators, lambda g: torch.randint(4, (1,), generator=g))[:, 0]
    moved = torch.where((border % 2 == 0)[:, None], to_start, to_end)
    moved = moved.masked_fill(torch.stack([border < 2, border >= 2], 1), 0)
    height, width = images.shape[2:]
    return place(images, moved, height, width)


class Corruption(NamedTuple):
    """What is done, and how a table calls it."""

    title: str
    apply: Callable[[Images, Generators], Images]


CORRUPTIONS: dict[str, Corruption] = {
    "grey-pixel": Corruption("one grey pixel (0.2) in a corner", grey_pixel),
    "specks": Corruption("0.5 % of pixels white", specks),
    "noise": Corruption("noise of 0.05", noise),
    "contrast": Corruption("half the contrast", contrast),
    "background": Corruption("background of 0.12", background),
    "thicker": Corruption("strokes 1 pixel thicker", lambda images, _: wider(images)),
    "thinner": Corruption("strokes 1 pixel thinner", lambda images, _: narrower(images)),
    "rotation": Corruption("rotated by 15 degrees", rotation),
    "cut-off": Corruption("10 % beyond the border", cut_off),
}


def corrupt(name: str, images: Images, first: int = 0) -> Images:
    """The images spoilt; they are number `first` and following of their set, which decides what is random."""
    place = list(CORRUPTIONS).index(name)
    generators = [generator_for(SEED, place, first + n) for n in range(len(images))]
    return CORRUPTIONS[name].apply(images, generators)


@dataclass(frozen=True, eq=False)
class Corrupted:
    """A test set with every image spoilt in the same way; labels and targets stay."""

    data: ScoredSet
    corruption: str

    @property
    def name(self) -> str:
        return f"{self.data.name}, {self.corruption}"

    @property
    def objects(self) -> int:
        return self.data.objects

    def __len__(self) -> int:
        return len(self.data)

    def batches(self, size: int) -> Iterator[Batch]:
        first = 0
        for batch in self.data.batches(size):
            yield batch._replace(images=corrupt(self.corruption, batch.images, first))
            first += len(batch.images)


def _each(generators: Generators, draw: Callable[[Generator], Tensor]) -> Tensor:
    return torch.stack([draw(generator) for generator in generators])
