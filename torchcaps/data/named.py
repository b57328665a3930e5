"""Data sets by name: a plain table, which `register_data` adds to, and `resolve`, which makes any data an object."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.core.errors import UserError
from torchcaps.data import eth80, sources, viewpoints
from torchcaps.data.dataset import TEST_PAIRS, DataSet
from torchcaps.data.eth80 import Eth80
from torchcaps.data.own import own_images
from torchcaps.data.sets import ImageSet, ScoredSet, Stream
from torchcaps.data.sources import Split
from torchcaps.data.synthetic import affnist_style, faces, ships
from torchcaps.data.synthetic.multimnist import RULES, Digits, PairSet, PairStream, Rule
from torchcaps.data.tensors import UNNAMED, Given, from_tensors, is_tensors, registered
from torchcaps.data.transforms import PRESETS, Augmentation

FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TOYS = ("animal", "human", "airplane", "truck", "car")


@dataclass(frozen=True, eq=False)
class NamedSet(DataSet):
    """A set of single images as the papers use it, out of files that are fetched by name."""

    files: str = field(default="", kw_only=True)
    """The files' name in `sources`, where it is not the set's own."""
    made: Callable[[np.ndarray, Split], np.ndarray] | None = field(default=None, kw_only=True)
    """Turns what is in the files into the images of the set."""

    @property
    def source(self) -> str:
        return self.files or self.name

    @property
    def handwritten(self) -> bool:
        return self.source in ("mnist", "mnist-mini")

    def images(self, split: Split) -> ImageSet:
        pixels, labels = sources.load_arrays(self.source, split)
        pixels = self.made(pixels, split) if self.made else pixels
        return ImageSet(self.name, torch.from_numpy(pixels), torch.from_numpy(labels), self.classes)

    def hashes(self) -> dict[str, str]:
        return sources.hashes(self.source)

    def fetch(self) -> dict[str, Path]:
        return {key: sources.fetch(key) for key in sources.SETS[self.source]}

    def is_here(self) -> bool:
        return sources.have(self.source, "test")


@dataclass(frozen=True, eq=False)
class PairedSet(NamedSet):
    """Two digits in an image, paired by a rule on the fly."""

    objects: int = field(default=2, kw_only=True)
    rule: Rule = field(kw_only=True)

    paired = True

    @property
    def overlay(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.overlay

    def stream(
        self, images: ImageSet, seed: int, pool: int | None = None, augment: Augmentation | None = None
    ) -> Stream:
        return PairStream(Digits(images, self.rule), seed, pool, augment)

    def scored(self, images: ImageSet, pairs: int = TEST_PAIRS) -> ScoredSet:
        return PairSet(self.name, Digits(images, self.rule), pairs)


@dataclass(frozen=True, eq=False)
class ViewpointSet(NamedSet):
    """The images of the familiar, or of the novel, viewpoints. For validation one toy of each kind is kept back."""

    by: viewpoints.By = field(kw_only=True)
    familiar: bool = field(kw_only=True)

    def _chosen(self, split: Split) -> tuple[viewpoints.Viewpoints, torch.Tensor]:
        views = viewpoints.read(self.source, split)
        return views, viewpoints.select(views, self.by, self.familiar)

    def images(self, split: Split) -> ImageSet:
        return super().images(split).take(self._chosen(split)[1])

    def training_and_validation(self, held_out: int) -> tuple[ImageSet, ImageSet]:
        if not held_out:
            return super().training_and_validation(held_out)
        views, chosen = self._chosen("train")
        return viewpoints.hold_out(self.images("train"), views.instance[chosen], held_out)


def _halved(pixels: np.ndarray, split: Split) -> np.ndarray:
    n, c, h, w = pixels.shape
    return pixels.reshape(n, c, h // 2, 2, w // 2, 2).mean((3, 5), dtype=np.float32).round().astype(np.uint8)


def _middle(pixels: np.ndarray, split: Split) -> np.ndarray:
    """38x38 of 48x48 pixels: crops of 32x32 are then at most 3 pixels from the one in the middle, which is tested."""
    return pixels[:, :, 5:-5, 5:-5]


_SHIFTED = PRESETS["shift"]
_THUMBNAILS = Augmentation(shift=2, flip=True, cutout=0.25)
_JITTERED = Augmentation(colour=0.3)
_MOVED = Augmentation(colour=0.3, shift=2)
_STEREO = (2, 32, 32)
_NORB = {
    "smallnorb": ("stereo pairs of toys; halved, 32x32 crops", _halved),
    "norb-style": ("toys rendered here, as smallNORB's; 32x32 crops", None),
}

_MINI = "the same of the digits inside the package"
_PAIRS = {
    "multimnist": ("mnist", "two digits, shifted by up to 4, sum clipped at 1"),
    "multimnist-stratified": ("mnist", "the same, every digit in equally many pairs, as the paper draws them"),
    "multimnist-mini": ("mnist-mini", _MINI),
    "multimnist-iou80": ("mnist", "two digits, pixel maximum, boxes overlap by IoU >= 0.8"),
    "multimnist-iou80-box20": ("mnist", "the same, of 20x20 boxes instead of the ink's"),
}
_AFFINE = {
    "affnist-style": ("mnist", "the same by our recipe, one map for each digit"),
    "affnist-style-mini": ("mnist-mini", _MINI),
}
_ETH80: tuple[tuple[str, str, viewpoints.By | None, bool], ...] = (
    ("", "photographs of 80 things from 41 viewpoints (your own files)", None, True),
    (":azimuth", "its familiar azimuths (12 views)", "azimuth", True),
    (":azimuth-novel", "its novel azimuths (28 views)", "azimuth", False),
    (":elevation", "its familiar elevations (28 views)", "elevation", True),
    (":elevation-novel", "its novel elevations (13 views)", "elevation", False),
)

_SETS = (
    NamedSet("mnist", "60,000 + 10,000 handwritten digits", (1, 28, 28), augment=_SHIFTED),
    NamedSet("mnist-mini", "5,000 + 1,000 of them, inside the package", (1, 28, 28), augment=_SHIFTED),
    NamedSet("fashion-mnist", "60,000 + 10,000 pieces of clothing", (1, 28, 28), FASHION, augment=_SHIFTED),
    *(PairedSet(name, about, (1, 36, 36), files=f, rule=RULES[name]) for name, (f, about) in _PAIRS.items()),
    NamedSet("translated-mnist", "digits anywhere on a 40x40 canvas", (1, 40, 40), files="mnist"),
    NamedSet("affnist", "digits under small affine transformations (for testing)", (1, 40, 40)),
    *(
        NamedSet(name, about, (1, 40, 40), files=files, made=affnist_style.transformed)
        for name, (files, about) in _AFFINE.items()
    ),
    NamedSet("cifar10", "50,000 + 10,000 photographs; 24x24 crops", (3, 24, 24), CIFAR),
    *(NamedSet(name, about, _STEREO, TOYS, augment=_JITTERED, made=made) for name, (about, made) in _NORB.items()),
    NamedSet(
        "norb-style-middle", "norb-style, crops near the middle, where toys are whole",
        _STEREO, TOYS, augment=_JITTERED, files="norb-style", made=_middle,
    ),
    NamedSet("cifar10-32", "the same, whole", (3, 32, 32), CIFAR, augment=_THUMBNAILS, files="cifar10"),
    NamedSet("faces", "drawn from parts, against other parts", (1, 28, 28), faces.CLASSES),
    NamedSet("ships", "the same of ships", (1, 28, 28), ships.CLASSES),
    NamedSet("svhn", "house numbers", (3, 32, 32), augment=_SHIFTED),
    NamedSet("svhn-rebuilt", "SVHN, rebuilt from the full-number images (your files)", (3, 32, 32), augment=_SHIFTED),
    *(
        ViewpointSet(
            f"{name}:{by}{'' if familiar else '-novel'}",
            f"its {'familiar' if familiar else 'novel'} {by}s ({'a third' if familiar else 'two thirds'})",
            _STEREO, TOYS, augment=_JITTERED, files=name, made=made, by=by, familiar=familiar,
        )
        for name, (_, made) in _NORB.items()
        for by in viewpoints.FAMILIAR
        for familiar in (True, False)
    ),
    *(
        Eth80(
            f"eth80{part}", about, (3, eth80.SIDE, eth80.SIDE), eth80.CATEGORIES,
            augment=_MOVED, by=by, familiar=familiar,
        )
        for part, about, by, familiar in _ETH80
    ),
)  # fmt: skip

DATA: dict[str, DataSet] = {data.name: data for data in _SETS}


def register_data(name: str, train: Given, test: Given = None, **options: Any) -> None:
    """Add a data set of one's own to the table: `(images, labels)`, a torch `Dataset`, or a function that returns one.

    Images are uint8 or floats, [n c h w] or [n h w]; labels are [n], or [n k] where an image shows several things.
    Without `test`, a share of the images is kept for testing. Options: `classes` (names), `about` (a line), `augment`
    (an `Augmentation`), and of a function, which is called when it is needed, also `image` and `objects`.

    >>> register_data("noise", (torch.rand(20, 8, 8), torch.arange(20) % 2), classes=("even", "odd"))
    >>> resolve("noise").image
    (1, 8, 8)
    """
    if name in DATA:
        raise UserError(f"there is a data set '{name}' already: choose another name")
    if os.sep in name or name.startswith(UNNAMED):
        raise UserError(f"'{name}' is no name for a data set: leave '{os.sep}' and '{UNNAMED}' out")
    DATA[name] = registered(name, train, test, **options)


def resolve(
    data: str | Path | DataSet | Given,
    *,
    size: tuple[int, int] | None = None,
    like: DataSet | None = None,
    test: Given = None,
    classes: Sequence[str] | None = None,
) -> DataSet:
    """The data set behind a name, a folder, a CSV, the record of a run, a pair of tensors or a torch `Dataset`.

    One's own pictures are brought to `size`, or to size and classes of the set that they should be `like`. `test` and
    `classes` go with tensors.
    """
    if isinstance(data, DataSet):
        return data
    if is_tensors(data):
        return from_tensors(data, test, classes)
    if not isinstance(data, str | os.PathLike):
        raise UserError(f"data is a name, a folder, (images, labels) or a torch Dataset, not {type(data).__name__}")
    name = str(data)
    if found := DATA.get(name) or own_images(name, size, like):
        return found
    if name.startswith(UNNAMED):
        raise UserError(f"this run was trained on tensors that have no name ({name}): hand them over again")
    if os.sep in name:
        raise UserError(f"{name} does not exist: give a folder with one sub-folder of images per class, or a .csv")
    raise UserError(
        f"unknown data set '{name}'; there are {', '.join(DATA)}, or your own images: a folder or a .csv; "
        "in Python, register_data adds others"
    )


def images(name: str, split: Split) -> ImageSet:
    """The images of a split as they are in the files."""
    return resolve(name).images(split)


def load_test_set(name: str, pairs: int = TEST_PAIRS, like: DataSet | None = None) -> ScoredSet:
    """The test set of a name, ready to be scored; other images of your own become `like` those of another set."""
    return resolve(name, like=like).test(pairs)
