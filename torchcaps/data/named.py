"""Data sets by name: their files, and how images are placed on the canvas in training and testing."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from torchcaps.core.errors import UserError
from torchcaps.data import folder, sources, viewpoints
from torchcaps.data.folder.listing import is_own
from torchcaps.data.sets import Augment, ImageSet, ImageStream, ScoredSet, Stream
from torchcaps.data.synthetic import affnist_style, faces
from torchcaps.data.synthetic.multimnist import RULES, TEST_PAIRS, Digits, PairSet, PairStream
from torchcaps.data.transforms import Augmentation, augmentation, colour_jitter, place

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
    it lies in the middle, or at fixed random places where the set itself is made of translations. `jitter` is how much
    brightness and contrast vary while training; `made` turns what is in the files into the set's own images; `views`
    keeps the images of the (by, familiar or not) viewpoints.
    """

    files: str
    about: str
    image: tuple[int, int, int]
    classes: tuple[str, ...] = DIGITS
    offsets: tuple[int, int] = (0, 0)
    translated: bool = False
    halved: bool = False
    objects: int = 1
    jitter: float = 0.0
    made: Callable[[np.ndarray, sources.Split], np.ndarray] | None = None
    views: tuple[viewpoints.By, bool] | None = None
    augment: str = "none"
    """The preset for training, where nothing is said by `offsets`."""

    @property
    def canvas(self) -> tuple[int, int]:
        return self.image[1:]

    @property
    def handwritten(self) -> bool:
        """Whether pictures of digits, on paper or on a screen, are to be prepared as MNIST's were."""
        return self.files in ("mnist", "mnist-mini")


_SHIFTED = (-2, 2)

DATA: dict[str, DataSpec] = {
    "mnist": DataSpec("mnist", "60,000 + 10,000 handwritten digits", (1, 28, 28), offsets=_SHIFTED),
    "mnist-mini": DataSpec("mnist-mini", "5,000 + 1,000 of them, inside the package", (1, 28, 28), offsets=_SHIFTED),
    "fashion-mnist": DataSpec(
        "fashion-mnist", "60,000 + 10,000 pieces of clothing", (1, 28, 28), FASHION, offsets=_SHIFTED
    ),
    "multimnist": DataSpec("mnist", "two digits, shifted by up to 4, sum clipped at 1", (1, 36, 36), objects=2),
    "multimnist-mini": DataSpec("mnist-mini", "the same of the digits inside the package", (1, 36, 36), objects=2),
    "multimnist-iou80": DataSpec(
        "mnist", "two digits, pixel maximum, boxes overlap by IoU >= 0.8", (1, 36, 36), objects=2
    ),
    "translated-mnist": DataSpec(
        "mnist", "digits anywhere on a 40x40 canvas", (1, 40, 40), offsets=(0, 12), translated=True
    ),
    "affnist": DataSpec("affnist", "digits under small affine transformations (for testing)", (1, 40, 40)),
    "affnist-style": DataSpec(
        "mnist", "the same by our recipe, one map for each digit", (1, 40, 40), made=affnist_style.transformed
    ),
    "affnist-style-mini": DataSpec(
        "mnist-mini", "the same of the digits inside the package", (1, 40, 40), made=affnist_style.transformed
    ),
    "cifar10": DataSpec("cifar10", "50,000 + 10,000 photographs; 24x24 crops", (3, 24, 24), CIFAR, offsets=(-8, 0)),
    "smallnorb": DataSpec(
        "smallnorb", "stereo pairs of toys; halved, 32x32 crops", (2, 32, 32), TOYS, (-16, 0), halved=True, jitter=0.3
    ),
    "norb-style": DataSpec(
        "norb-style", "toys rendered here, as smallNORB's; 32x32 crops", (2, 32, 32), TOYS, (-16, 0), jitter=0.3
    ),
    "cifar10-32": DataSpec("cifar10", "the same, whole", (3, 32, 32), CIFAR, augment="natural"),
    "faces": DataSpec("faces", "drawn from parts, against other parts", (1, 28, 28), faces.CLASSES),
    "svhn": DataSpec("svhn", "house numbers", (3, 32, 32), offsets=_SHIFTED),
}
DATA |= {
    f"{name}:{by}{'' if familiar else '-novel'}": replace(
        DATA[name],
        about=f"its {'familiar' if familiar else 'novel'} {by}s ({'a third' if familiar else 'two thirds'})",
        views=(by, familiar),
    )
    for name in ("smallnorb", "norb-style")
    for by in viewpoints.FAMILIAR
    for familiar in (True, False)
}


def find(name: str, size: tuple[int, int] | None = None) -> DataSpec:
    """A set by its name, or your own images by their path; these are brought to `size`, or one that suits them."""
    if name in DATA:
        return DATA[name]
    if folder.is_record(name):
        record = folder.load(name)
        return _own(name, record.image, record.classes)
    if is_own(name):
        seen = folder.survey(name, size)
        return _own(name, seen.image, seen.listing.classes)
    if os.sep in name:
        raise UserError(f"{name} does not exist: give a folder with one sub-folder of images per class, or a .csv")
    raise UserError(f"unknown data set '{name}'; there are {', '.join(DATA)}, or your own images: a folder or a .csv")


def _own(path: str, image: tuple[int, int, int], classes: tuple[str, ...]) -> DataSpec:
    """Letters and signs are not mirrored: grey images are only shifted, photographs are varied as photographs are."""
    return DataSpec(path, "your own images", image, classes, augment="natural" if image[0] == 3 else "shift")


def prepared(name: str, image: tuple[int, int, int], run: Path) -> str:
    """The name under which a training knows its data: of your own images the record, the run's if it has one."""
    if name in DATA:
        return name
    kept = run / folder.RECORD
    if kept.exists():
        return str(kept)
    return name if folder.is_record(name) else str(folder.collect(name, image))


def _record(name: str) -> folder.Collection:
    return folder.load(name if folder.is_record(name) else str(folder.collect(name, find(name).image)))


def hashes(name: str) -> dict[str, str]:
    """What pins the data down: of each file, or of your own images of each split."""
    if name in DATA:
        return sources.hashes(DATA[name].files)
    record = _record(name)
    return {f"{record.name}/{split}": digest for split, digest in record.sha256.items()}


def title(name: str) -> str:
    """What to call a set to a person: of your own images the folder's name."""
    return name if name in DATA else folder.load(name).name if folder.is_record(name) else Path(name).stem


def is_here(name: str) -> bool:
    """Whether the test images are on this machine."""
    if name not in DATA:
        return not folder.is_record(name) or folder.load(name).here()
    return sources.have(DATA[name].files, "test")


def images(name: str, split: sources.Split) -> ImageSet:
    """The images of a split as they are in the files (halved where the papers do)."""
    if name not in DATA:
        return _record(name).images(split)
    spec = find(name)
    pixels, labels = sources.load_arrays(spec.files, split)
    if spec.halved:
        n, c, h, w = pixels.shape
        pixels = pixels.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5), dtype=np.float32).round().astype(np.uint8)
    if spec.made:
        pixels = spec.made(pixels, split)
    data = ImageSet(name, torch.from_numpy(pixels), torch.from_numpy(labels), spec.classes)
    if spec.views is None:
        return data
    return data.take(viewpoints.select(viewpoints.read(spec.files, split), *spec.views))


def _views(spec: DataSpec, split: sources.Split) -> viewpoints.Viewpoints | None:
    """Of the images of a set that is divided by viewpoints."""
    if spec.views is None:
        return None
    views = viewpoints.read(spec.files, split)
    kept = viewpoints.select(views, *spec.views)
    return viewpoints.Viewpoints(*(column[kept] for column in views))


def training_and_validation(name: str, held_out: int) -> tuple[ImageSet, ImageSet]:
    """What to learn from and what to watch meanwhile: of your own images as they were divided.

    Where it is about viewpoints, some toys are kept back altogether, because testing asks about new toys as well.
    """
    if name not in DATA:
        record = _record(name)
        return record.images("train"), record.images("validation")
    training = images(name, "train")
    views = _views(DATA[name], "train")
    if views is None or not held_out:
        return training.split(min(held_out, len(training) // 10))
    new = views.instance == views.instance.max()
    kept = training.take(new.nonzero()[:, 0])
    return training.take((~new).nonzero()[:, 0]), kept.split(min(held_out, len(kept)))[1]


def for_testing(name: str, data: ImageSet, pairs: int = TEST_PAIRS) -> ScoredSet:
    """A set in the fixed order and layout in which it is scored."""
    spec = find(name)
    if spec.objects == 2:
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


def for_training(
    name: str, data: ImageSet, seed: int, pool: int | None = None, augment: Augmentation | None = None
) -> Stream:
    """A set as the endless stream that training reads, augmented as the set is meant to be unless told how."""
    spec = find(name)
    if spec.objects == 2:
        if augment is not None:
            raise UserError(f"{name} makes its pairs by a rule of its own: leave the augmentation out")
        return PairStream(Digits(data, RULES[name]), seed, pool)
    if pool is not None:
        raise UserError(f"a pool of pairs is for MultiMNIST; {name} has single images")
    return ImageStream(data, seed, _augment(spec, augment))


def _augment(spec: DataSpec, chosen: Augmentation | None) -> Augment | None:
    """The layout on the canvas, then what was chosen: it takes the place of shifts and jitter, but not of crops."""
    low, high = spec.offsets
    layout = partial(_scatter, offsets=spec.offsets, canvas=spec.canvas, jitter=spec.jitter)
    if low == high == 0:
        chosen = augmentation(spec.augment) if chosen is None else chosen
        return None if chosen == Augmentation() else chosen
    if chosen is None:
        return layout
    if low == -high:
        return chosen
    crops = partial(layout, jitter=0.0)
    return lambda batch, generator: chosen(crops(batch, generator), generator)


def _scatter(
    batch: Tensor, generator: Generator, offsets: tuple[int, int], canvas: tuple[int, int], jitter: float = 0.0
) -> Tensor:
    where = torch.randint(offsets[0], offsets[1] + 1, (len(batch), 2), generator=generator)
    placed = place(batch, where, *canvas)
    return colour_jitter(placed, generator, brightness=jitter, contrast=jitter) if jitter else placed


def load_test_set(name: str, pairs: int = TEST_PAIRS, like: DataSpec | None = None) -> ScoredSet:
    """The test set of a name, ready to be scored.

    Other images of your own are brought to the size, and take the classes, of the set that they should be `like`: all
    of them count, unless there is a test split.
    """
    if like is not None and name not in DATA and is_own(name):
        return folder.load(str(folder.collect(name, like.image, like.classes))).images("test")
    if like is not None and folder.is_record(name):
        record = find(name)
        if (record.image, record.classes) != (like.image, like.classes):
            raise UserError(f"{name} has other images or classes than this network was trained on")
    return for_testing(name, images(name, "test"), pairs)
