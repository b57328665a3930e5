"""Tensors, or a `torch.utils.data.Dataset`, of one's own as a data set, checked before anything is trained on them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from torchcaps.core.errors import UserError
from torchcaps.core.progress import Progress
from torchcaps.data.dataset import DataSet
from torchcaps.data.folder.division import TEST_SHARE
from torchcaps.data.sets import ImageSet
from torchcaps.data.sources import Split
from torchcaps.data.transforms import Augmentation

Given = Any
"""A pair (images, labels) of tensors or arrays, a `Dataset` of such pairs, or a function that returns one of both."""
UNNAMED = "tensors:"
"""What a run calls tensors that have no name; the first digits of their hash follow."""


@dataclass(frozen=True, eq=False)
class TensorSet(DataSet):
    """Images and labels that were handed over. Without test images, a share of the training images is kept for that.

    Random transforms of a `Dataset` would be frozen, because it is read once: they belong into `augment`.
    """

    train: Given = field(kw_only=True)
    tested: Given = field(default=None, kw_only=True)

    own = True

    @property
    def title(self) -> str:
        return "tensors" if self.name.startswith(UNNAMED) else self.name

    @cached_property
    def _splits(self) -> dict[Split, ImageSet]:
        whole = self._read(self.train, "training")
        if self.tested is None:
            rest, kept = whole.split(max(1, round(TEST_SHARE * len(whole))))
            return {"train": rest, "test": kept}
        return {"train": whole, "test": self._read(self.tested, "test")}

    def _read(self, given: Given, what: str) -> ImageSet:
        images, labels = read_pair(given, f"{self.title}, {what}")
        check_labels(labels, len(self.classes), f"{self.title}, {what}")
        found = ImageSet(self.title, images, labels, self.classes)
        if (tuple(images.shape[1:]), found.objects) != (self.image, self.objects):
            raise UserError(
                f"{self.title}, {what}: images of {tuple(images.shape[1:])} with {found.objects} labels each, "
                f"should be {self.image} with {self.objects}"
            )
        return found

    def images(self, split: Split) -> ImageSet:
        return self._splits[split]

    def hashes(self) -> dict[str, str]:
        return {f"{self.title}/{split}": _sha256(part.images, part.labels) for split, part in self._splits.items()}

    def training_images(self) -> int:
        return len(self.images("train")) * 9 // 10

    def keep(self, run: Any) -> list[str]:
        kept = len(self.images("test"))
        return [] if self.tested is not None else [f"no test images were given: {kept:,} are kept for that"]


def from_tensors(train: Given, test: Given = None, classes: Sequence[str] | None = None) -> TensorSet:
    """A data set of tensors that has no name but its hash. Without `classes` they are numbered, as labels are."""
    pairs = {"training": read_pair(train, "training")}
    if test is not None:
        pairs["test"] = read_pair(test, "test")
    images, labels = pairs["training"]
    c, h, w = images.shape[1:]
    names = tuple(classes or map(str, range(1 + max(int(labels.max()) for _, labels in pairs.values()))))
    found = TensorSet(
        UNNAMED, "tensors", (c, h, w), names,
        objects=1 if labels.ndim == 1 else labels.shape[1], train=pairs["training"], tested=pairs.get("test"),
    )  # fmt: skip
    return replace(found, name=UNNAMED + hashlib.sha256("".join(found.hashes().values()).encode()).hexdigest()[:12])


def registered(
    name: str,
    train: Given,
    test: Given = None,
    *,
    image: tuple[int, int, int] | None = None,
    classes: Sequence[str] | None = None,
    objects: int = 1,
    about: str = "",
    augment: Augmentation | None = None,
) -> TensorSet:
    """A data set of tensors by a name; functions are called when their images are needed."""
    usual = augment or Augmentation()
    if not _is_function(train):
        found = from_tensors(train, None if _is_function(test) else test, classes)
        return replace(
            found, name=name, about=about, augment=usual, tested=test if _is_function(test) else found.tested
        )
    if image is None or classes is None:
        raise UserError(f"'{name}' is read when it is needed: say its image (channels, height, width) and its classes")
    return TensorSet(name, about, image, tuple(classes), objects=objects, augment=usual, train=train, tested=test)


def _is_function(given: Given) -> bool:
    return callable(given) and not isinstance(given, Dataset)


def is_tensors(data: object) -> bool:
    return isinstance(data, tuple | list | Dataset)


def read_pair(given: Given, what: str) -> tuple[Tensor, Tensor]:
    """Images [n c h w], bytes or floats, and labels [n] or [n k] of what was handed over, or what is wrong with it."""
    if _is_function(given):
        given = given()
    if isinstance(given, Dataset):
        given = _read_dataset(given, what)
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise UserError(f"{what}: a pair (images, labels) or a torch Dataset is needed, not {type(given).__name__}")
    images, labels = (torch.as_tensor(part) for part in given)
    images = images[:, None] if images.ndim == 3 else images
    if images.ndim != 4:
        raise UserError(f"{what}: images must be [n, c, h, w] or [n, h, w], not {list(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise UserError(f"{what}: images must be uint8, 0 to 255, or floats, 0 to 1, not {images.dtype}")
    if not images.numel():
        raise UserError(f"{what}: there are no images in {list(images.shape)}")
    if labels.is_floating_point() or labels.ndim not in (1, 2) or len(labels) != len(images) or not labels.numel():
        raise UserError(
            f"{what}: labels must be whole numbers, [{len(images)}] or [{len(images)}, k] as there are "
            f"{len(images)} images, not {labels.dtype} {list(labels.shape)}"
        )
    if images.is_floating_point() and not (finite := images.isfinite().flatten(1).all(1)).all():
        raise UserError(f"{what}: {int((~finite).sum())} of {len(images)} images have values that are not numbers")
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    images = images.float() if images.is_floating_point() else images
    check_labels(labels, None, what)
    return images.cpu().contiguous(), labels.long().cpu().contiguous()


def check_labels(labels: Tensor, classes: int | None, what: str) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        allowed = "0 or more" if classes is None else f"from 0 to {classes - 1} for {classes} classes"
        raise UserError(f"{what}: labels go from {low} to {high}, should be {allowed}")


def _read_dataset(data: Dataset[Any], what: str) -> tuple[Tensor, Tensor]:
    """All of it, in order, into memory."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise UserError(f"{what}: {type(data).__name__} has no length; a Dataset of (image, label) with one is needed")
    count = len(data)  # pyright: ignore[reportArgumentType]
    if not count:
        raise UserError(f"{what}: there are no images in a {type(data).__name__} of length 0")
    images, labels = [], []
    with Progress(f"{what}: reading {count:,} images", count, "images") as bar:
        for index in range(count):
            image, label = data[index]
            images.append(_picture(image))
            labels.append(torch.as_tensor(label))
            bar.update(1)
    shapes = {tuple(image.shape) for image in images}
    if len(shapes) > 1:
        raise UserError(f"{what}: images have {len(shapes)} sizes, such as {sorted(shapes)[:2]}: bring them to one")
    return torch.stack(images), torch.stack(labels)


def _picture(image: Any) -> Tensor:
    """A picture of Pillow has its channels last."""
    if isinstance(image, Tensor):
        return image
    pixels = torch.from_numpy(np.array(image))
    return pixels.movedim(-1, 0) if hasattr(image, "getbands") and pixels.ndim == 3 else pixels


def _sha256(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr((str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
