"""Data sets by name: which files, how they are laid out for training, and how for testing."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Generator, Tensor

from torchcaps.data import sources
from torchcaps.data.multimnist import RULES, TEST_PAIRS, Digits, PairSet, PairStream
from torchcaps.data.sets import ImageSet, ImageStream, ScoredSet, Stream
from torchcaps.errors import UserError
from torchcaps.transforms import place

DIGITS = tuple("0123456789")
FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TOYS = ("animal", "human", "airplane", "truck", "car")
PLACEMENT_SEED = 2017


@dataclass(frozen=True)
class DataSpec:
    """A data set as the papers use it.

    Each image is laid on a canvas, its corner drawn from `offsets` while training: negative offsets on a smaller canvas
    are random crops, small ones around zero are shifts, positive ones on a larger canvas are translations. In testing
    it lies in the middle, or at fixed random places where the set itself is made of translations.
    """

    files: str
    about: str
    image: tuple[int, int, int]
    classes: tuple[str, ...] = DIGITS
    offsets: tuple[int, int] = (0, 0)
    translated: bool = False
    halved: bool = False
    digits: int = 1

    @property
    def canvas(self) -> tuple[int, int]:
        return self.image[1:]


_SHIFTED = (-2, 2)

DATA: dict[str, DataSpec] = {
    "mnist": DataSpec("mnist", "60,000 + 10,000 handwritten digits", (1, 28, 28), offsets=_SHIFTED),
    "mnist-mini": DataSpec("mnist-mini", "5,000 + 1,000 of them, inside the package", (1, 28, 28), offsets=_SHIFTED),
    "fashion-mnist": DataSpec(
        "fashion-mnist", "60,000 + 10,000 pieces of clothing", (1, 28, 28), FASHION, offsets=_SHIFTED
    ),
    "multimnist": DataSpec("mnist", "two digits, shifted by up to 4, sum clipped at 1", (1, 36, 36), digits=2),
    "multimnist-mini": DataSpec("mnist-mini", "the same of the digits inside the package", (1, 36, 36), digits=2),
    "multimnist-iou80": DataSpec(
        "mnist", "two digits, pixel maximum, boxes overlap by IoU >= 0.8", (1, 36, 36), digits=2
    ),
    "translated-mnist": DataSpec(
        "mnist", "digits anywhere on a 40x40 canvas", (1, 40, 40), offsets=(0, 12), translated=True
    ),
    "affnist": DataSpec("affnist", "digits under small affine transformations (for testing)", (1, 40, 40)),
    "cifar10": DataSpec("cifar10", "50,000 + 10,000 photographs; 24x24 crops", (3, 24, 24), CIFAR, offsets=(-8, 0)),
    "smallnorb": DataSpec(
        "smallnorb", "stereo pairs of toys; halved, 32x32 crops", (2, 32, 32), TOYS, offsets=(-16, 0), halved=True
    ),
    "svhn": DataSpec("svhn", "house numbers", (3, 32, 32), offsets=_SHIFTED),
}


def find(name: str) -> DataSpec:
    if name not in DATA:
        raise UserError(f"unknown data set '{name}'; there are {', '.join(DATA)}")
    return DATA[name]


def images(name: str, split: sources.Split) -> ImageSet:
    """The images of a split as they are in the files (halved where the papers do)."""
    spec = find(name)
    pixels, labels = sources.load_arrays(spec.files, split)
    if spec.halved:
        n, c, h, w = pixels.shape
        pixels = pixels.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5), dtype=np.float32).round().astype(np.uint8)
    return ImageSet(name, torch.from_numpy(pixels), torch.from_numpy(labels), spec.classes)


def for_testing(name: str, data: ImageSet, pairs: int = TEST_PAIRS) -> ScoredSet:
    """A set in the fixed order and layout in which it is scored."""
    spec = find(name)
    if spec.digits == 2:
        return PairSet(name, Digits(data, RULES[name]), pairs)
    low, high = spec.offsets
    offsets = torch.full((len(data), 2), (low + high) // 2)
    if spec.translated:
        offsets = torch.from_numpy(np.random.RandomState(PLACEMENT_SEED).randint(low, high + 1, size=(len(data), 2)))
    elif data.images.shape[2:] == spec.canvas:
        return data
    blocks = [
        place(block, where, *spec.canvas)
        for block, where in zip(data.images.split(1000), offsets.split(1000), strict=True)
    ]
    return ImageSet(name, torch.cat(blocks), data.labels, spec.classes)


def for_training(name: str, data: ImageSet, seed: int, pool: int | None = None) -> Stream:
    """A set as the endless, augmented stream that training reads."""
    spec = find(name)
    if spec.digits == 2:
        return PairStream(Digits(data, RULES[name]), seed, pool)
    if pool is not None:
        raise UserError(f"a pool of pairs is for MultiMNIST; {name} has single images")
    if spec.offsets == (0, 0):
        return ImageStream(data, seed)
    return ImageStream(data, seed, partial(_scatter, offsets=spec.offsets, canvas=spec.canvas))


def _scatter(batch: Tensor, generator: Generator, offsets: tuple[int, int], canvas: tuple[int, int]) -> Tensor:
    where = torch.randint(offsets[0], offsets[1] + 1, (len(batch), 2), generator=generator)
    return place(batch, where, *canvas)


def load_test_set(name: str, pairs: int = TEST_PAIRS) -> ScoredSet:
    """The test set of a name, ready to be scored."""
    return for_testing(name, images(name, "test"), pairs)
