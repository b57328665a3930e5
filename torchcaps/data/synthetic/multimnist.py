"""Two digits of different classes on top of each other, made on the fly.

`multimnist` is the paper's set (Sabour et al. 2017, section 6.1): each digit is shifted by up to 4 pixels in each
direction, which gives a 36x36 image, and the sum of the two is clipped at 1. `multimnist-iou80` overlays by the pixel
maximum and keeps only pairs whose shifted bounding boxes have an intersection over union of at least 0.8. Its boxes are
those of the ink; in `multimnist-iou80-box20` they are 20x20 pixels in the middle of a digit's image, the box that
MNIST's digits are scaled to, so that the shifts alone decide.

The ink's boxes make it another task: a narrow digit seldom fits another. Share of the 10,000 test pairs, in percent,
that show a digit:

                               0     1     2     3     4     5     6     7     8     9
    multimnist              19.4  22.7  20.6  19.9  19.8  18.4  19.1  20.1  19.7  20.3
    multimnist-iou80        24.7   7.3  24.2  23.9  22.9  19.6  18.5  19.9  21.5  17.6
    multimnist-iou80-box20  19.7  22.7  20.4  20.3  20.2  18.0  19.4  20.2  19.2  19.9
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from torchcaps.core.errors import UserError
from torchcaps.data.dataset import TEST_PAIRS
from torchcaps.data.sets import Batch, ImageSet, generator_for, in_epochs, to_float
from torchcaps.data.transforms import Augmentation, bounding_boxes, place

SHIFT = 4
PATIENCE = 20
"""Rounds of proposals of which none is allowed."""
TEST_SEED = 2017
BLOCK = 65_536


@dataclass(frozen=True)
class Rule:
    """How two digits become one image."""

    overlay: Literal["sum", "maximum"]
    min_iou: float | None = None
    # Candidates to draw for each pair wanted: 90 % survive the paper's rule, 2.7 % that of ink, 12 % that of boxes.
    oversampling: float = 1.2
    box: int | None = None
    """Side of the box in the middle of a digit's image that counts as its bounding box, instead of the ink's own."""
    stratified: bool = False
    """Whether every digit is the first of equally many pairs, as in the paper, or drawn at random like the second."""


RULES = {
    "multimnist": Rule("sum"),
    "multimnist-stratified": Rule("sum", stratified=True),
    "multimnist-mini": Rule("sum"),
    "multimnist-iou80": Rule("maximum", min_iou=0.8, oversampling=42),
    "multimnist-iou80-box20": Rule("maximum", min_iou=0.8, oversampling=9, box=20),
}


class Pairs(NamedTuple):
    """Which two digits, and where: enough to draw the image."""

    digits: Int64[Tensor, "n 2"]
    shifts: Int64[Tensor, "n 2 2"]


def box_iou(a: Int64[Tensor, "n 4"], b: Int64[Tensor, "n 4"]) -> Float[Tensor, "n"]:
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    return both / (area_a + area_b - both)


@dataclass(frozen=True, eq=False)
class Digits:
    """The digits of one split, ready to be paired."""

    images: ImageSet
    rule: Rule

    @cached_property
    def boxes(self) -> Int64[Tensor, "n 4"]:
        if self.rule.box is None:
            return bounding_boxes(self.images.images[:, 0] > 0)
        sides = torch.tensor(self.images.images.shape[2:])
        first = (sides - self.rule.box) // 2
        return torch.cat([first, first + self.rule.box]).expand(len(self.images), -1)

    @property
    def canvas(self) -> tuple[int, int]:
        height, width = self.images.images.shape[2:]
        return height + 2 * SHIFT, width + 2 * SHIFT

    def allowed(self, candidates: Pairs) -> Tensor:
        first, second = candidates.digits.unbind(1)
        labels = self.images.labels
        ok = labels[first] != labels[second]
        if self.rule.min_iou is not None:
            moved = self.boxes[candidates.digits] + candidates.shifts.repeat(1, 1, 2)
            ok &= box_iou(moved[:, 0], moved[:, 1]) >= self.rule.min_iou
        return ok

    def draw(self, pairs: Pairs, changed: Callable[[Tensor], Tensor] | None = None) -> Batch:
        """The images of these pairs; `changed` is done to both digits of a pair alike, before they are overlaid."""
        height, width = self.canvas
        digits = self.images.images[pairs.digits.flatten()]
        placed = place(digits, pairs.shifts.flatten(0, 1) + SHIFT, height, width)
        sources = to_float(placed).unflatten(0, (-1, 2))
        if changed is not None:
            sources = changed(sources.flatten(1, 2)).unflatten(1, (2, -1))
        overlay = sources.amax(1) if self.rule.overlay == "maximum" else sources.sum(1).clamp_(max=1)
        return Batch(overlay, self.images.labels[pairs.digits], sources)

    def collect(self, count: int, propose: Callable[[int], Pairs]) -> Pairs:
        """`count` pairs that obey the rule, by rejection: every allowed pair is equally likely."""
        found: list[Pairs] = []
        missing, in_vain = count, 0
        while missing > 0:
            candidates = propose(missing)
            kept = self.allowed(candidates).nonzero()[:missing, 0]
            in_vain = 0 if len(kept) else in_vain + 1
            if in_vain == PATIENCE:
                raise self._too_few()
            found.append(Pairs(candidates.digits[kept], candidates.shifts[kept]))
            missing -= len(kept)
        return Pairs(*(torch.cat(column) for column in zip(*found, strict=True)))

    def partners(self, first: Int64[Tensor, "n"], propose: Callable[[int], Pairs]) -> Pairs:
        """Pairs that obey the rule, with these digits as the first ones; what is not allowed is drawn again."""
        digits, shifts = propose(len(first))
        pairs = Pairs(torch.stack([first, digits[:, 1]], 1), shifts)
        for _ in range(PATIENCE):
            wrong = (~self.allowed(pairs)).nonzero()[:, 0]
            if not len(wrong):
                return pairs
            again = propose(len(wrong))
            pairs.digits[wrong, 1], pairs.shifts[wrong] = again.digits[:, 1], again.shifts
        raise self._too_few()

    def _too_few(self) -> UserError:
        return UserError(f"{len(self.images)} digits of {self.images.name} make no pairs by the rule: take more")

    def sample(self, count: int, generator: Generator) -> Pairs:
        return self.collect(count, lambda wanted: self.drawn(int(wanted * self.rule.oversampling) + 64, generator))

    def drawn(self, count: int, generator: Generator) -> Pairs:
        """Any pairs, whether or not they obey the rule."""
        return Pairs(
            torch.randint(len(self.images), (count, 2), generator=generator),
            torch.randint(-SHIFT, SHIFT + 1, (count, 2, 2), generator=generator),
        )


@dataclass(frozen=True, eq=False)
class PairStream:
    """Training pairs that never repeat, as many in an epoch as there are digits; or a fixed pool, each pair once in an
    epoch, in a new order."""

    source: Digits
    seed: int
    pool: int | None = None
    augment: Augmentation | None = None

    def __len__(self) -> int:
        return self.pool or len(self.source.images)

    @cached_property
    def _pool(self) -> Pairs:
        assert self.pool is not None
        return self.source.sample(self.pool, generator_for(self.seed))

    def batch(self, step: int, size: int) -> Batch:
        generator = generator_for(self.seed, step)
        if self.pool is None and self.source.rule.stratified:
            first = in_epochs(len(self), self.seed, step, size)
            pairs = self.source.partners(first, lambda wanted: self.source.drawn(wanted, generator))
        elif self.pool is None:
            pairs = self.source.sample(size, generator)
        else:
            chosen = in_epochs(self.pool, self.seed, step, size)
            pairs = Pairs(self._pool.digits[chosen], self._pool.shifts[chosen])
        if self.augment is None:
            return self.source.draw(pairs)
        moved = replace(self.augment, noise=0.0)
        batch = self.source.draw(pairs, lambda digits: moved(digits, generator))
        # The digits that are to be redrawn stay clean.
        noise = Augmentation(noise=self.augment.noise, part=self.augment.part)
        return batch._replace(images=noise(batch.images, generator)) if noise.noise else batch


@dataclass(frozen=True, eq=False)
class PairSet:
    """A fixed set of test pairs, the same on every machine."""

    name: str
    source: Digits
    count: int = TEST_PAIRS
    seed: int = TEST_SEED
    objects: int = field(default=2, init=False)

    def __len__(self) -> int:
        return self.count

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.images.classes

    @cached_property
    def pairs(self) -> Pairs:
        """Drawn with NumPy's RandomState, whose streams are frozen for good. A larger set begins with the smaller."""
        state = np.random.RandomState(self.seed)

        def propose(count: int) -> Pairs:
            return Pairs(
                torch.from_numpy(state.randint(len(self.source.images), size=(count, 2))),
                torch.from_numpy(state.randint(-SHIFT, SHIFT + 1, size=(count, 2, 2))),
            )

        if not self.source.rule.stratified:
            return self.source.collect(self.count, lambda _: propose(BLOCK))
        blocks = torch.arange(-(-self.count // BLOCK) * BLOCK).remainder(len(self.source.images)).split(BLOCK)
        found = [self.source.partners(first, propose) for first in blocks]
        return Pairs(*(torch.cat(column)[: self.count] for column in zip(*found, strict=True)))

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for column in self.pairs:
            digest.update(column.to(torch.int32).numpy().astype("<i4").tobytes())
        return digest.hexdigest()

    def batches(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self), size):
            yield self.source.draw(Pairs(*(column[start : start + size] for column in self.pairs)))
