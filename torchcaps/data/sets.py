"""Images in memory, and the two ways to read them: in order for testing, as an endless stream for training.

A stream's batch is a pure function of its seed and the step. Resuming therefore needs no saved random state, and under
data-parallel training every process can cut its own share out of the same global batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Int64, Shaped
from torch import Generator, Tensor

Augment = Callable[[Tensor, Generator], Tensor]
UNEVEN = 10
"""A set counts as uneven if its largest class is more than this many times the smallest."""
MOST_REPEATS = 10
"""How often one image may be repeated in an epoch, so that a few images of a rare class are not memorised."""


class Batch(NamedTuple):
    """Images, the `k` labels of each, and for each label the picture that its capsule should reconstruct."""

    images: Float[Tensor, "b c h w"]
    labels: Int[Tensor, "b k"]
    targets: Float[Tensor, "b k c h w"]

    def part(self, rank: int, world: int) -> "Batch":
        """The share of one of `world` processes."""
        share = len(self.images) // world
        return Batch(*(field[rank * share : (rank + 1) * share] for field in self))


@runtime_checkable
class ScoredSet(Protocol):
    """Images for scoring: batches in a fixed order; the last one may be smaller."""

    @property
    def name(self) -> str: ...
    @property
    def objects(self) -> int: ...
    def __len__(self) -> int: ...
    def batches(self, size: int) -> Iterator[Batch]: ...


@runtime_checkable
class Stream(Protocol):
    """Images for training. `len` is the number of images in an epoch."""

    def __len__(self) -> int: ...
    def batch(self, step: int, size: int) -> Batch: ...


def generator_for(seed: int, *position: int) -> Generator:
    """A random generator from a seed and a position, such as a step of a run."""
    mixed = np.random.SeedSequence(seed, spawn_key=position).generate_state(1, np.uint64)[0]
    return Generator().manual_seed(int(mixed >> np.uint64(1)))


def to_float(images: Shaped[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Bytes become numbers from 0 to 1; what has decimals is left as it is."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images, a pair of tensors in memory: bytes or floats, and a label or several labels of each.

    Of an image with several labels the parts are not known, so that the whole image is the target of each.
    """

    name: str
    images: Shaped[Tensor, "n c h w"]
    labels: Int64[Tensor, "n *k"]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def objects(self) -> int:
        return 1 if self.labels.ndim == 1 else self.labels.shape[1]

    @property
    def kinds(self) -> Int64[Tensor, "n"]:
        """The label by which images are divided and balanced: of several the first."""
        return self.labels if self.labels.ndim == 1 else self.labels[:, 0]

    def batch(self, images: Shaped[Tensor, "b c h w"], labels: Int64[Tensor, "b *k"]) -> Batch:
        pixels = to_float(images)
        return Batch(pixels, labels.reshape(len(labels), -1), pixels[:, None].expand(-1, self.objects, -1, -1, -1))

    def take(self, index: Int64[Tensor, "m"]) -> "ImageSet":
        return replace(self, images=self.images[index], labels=self.labels[index])

    def split(self, held_out: int, seed: int = 0) -> tuple["ImageSet", "ImageSet"]:
        """Split off `held_out` images for validation, with the same proportion of each class."""
        order = torch.randperm(len(self), generator=generator_for(seed, len(self)))
        order = order[self.kinds[order].argsort(stable=True)]
        chosen = torch.zeros(len(self), dtype=torch.bool)
        if held_out:
            # Evenly spaced places in an order sorted by class take the same share of every class.
            chosen[order[torch.linspace(0, len(self) - 1, held_out).round().long()]] = True
        return self.take((~chosen).nonzero()[:, 0]), self.take(chosen.nonzero()[:, 0])

    def some_of_each(self, count: int, seed: int) -> "ImageSet":
        """`count` images of each class, or all of a class that has fewer."""
        order = torch.randperm(len(self), generator=generator_for(seed, len(self), count))
        chosen = [order[self.kinds[order] == k][:count] for k in range(len(self.classes))]
        return self.take(torch.cat(chosen).sort().values)

    def batches(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self), size):
            yield self.batch(self.images[start : start + size], self.labels[start : start + size])


@dataclass(frozen=True, eq=False)
class ImageStream:
    """Every image once in each epoch, in a new random order, augmented."""

    data: ImageSet
    seed: int
    augment: Augment | None = None
    rows: Int64[Tensor, "m"] | None = None
    """The images of an epoch, perhaps with repetitions, instead of every image once."""

    def __len__(self) -> int:
        return len(self.data) if self.rows is None else len(self.rows)

    @property
    def _counts(self) -> Int64[Tensor, "k"]:
        return torch.bincount(self.data.kinds, minlength=len(self.data.classes)).clamp(min=1)

    @property
    def uneven(self) -> bool:
        return bool(self._counts.max() > UNEVEN * self._counts.min())

    def about_balance(self) -> str:
        least, most = (int(count) for count in self._counts.aminmax())
        done = "are not shown more often" if self.rows is None else f"are shown up to {MOST_REPEATS} times as often"
        return f"classes have {least:,} to {most:,} images to train on; rare ones {done}"

    def balanced(self) -> "ImageStream":
        """Images of rare classes are shown more often, up to as often as makes all classes equal or `MOST_REPEATS`."""
        repeats = (self._counts.max() / self._counts).round().long().clamp(max=MOST_REPEATS)
        return replace(self, rows=torch.arange(len(self.data)).repeat_interleave(repeats[self.data.kinds]))

    def batch(self, step: int, size: int) -> Batch:
        epoch, position = divmod(step, max(1, len(self) // size))
        index = in_epochs(len(self), self.seed, step, size)
        index = index if self.rows is None else self.rows[index]
        images = self.data.images[index]
        if self.augment is not None:
            images = self.augment(images, generator_for(self.seed, epoch, position))
        return self.data.batch(images, self.data.labels[index])


def in_epochs(count: int, seed: int, step: int, size: int) -> Int64[Tensor, "m"]:
    """The members of a batch: each of `count` once an epoch, in a new order; what fills no batch is left out."""
    epoch, position = divmod(step, max(1, count // size))
    return _order(count, seed, epoch)[position * size : (position + 1) * size]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Int64[Tensor, "n"]:
    return torch.randperm(count, generator=generator_for(seed, epoch))
