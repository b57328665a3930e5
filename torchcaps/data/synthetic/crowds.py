"""Several digits on top of each other that MultiMNIST does not have: of the same class, or more than two.

Digits are shifted by up to 4 pixels and their sum is clipped at 1, as in `multimnist`; they are drawn with NumPy's
RandomState, so that a set is the same on every machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.data.sets import Batch, ImageSet, to_float
from torchcaps.data.synthetic.multimnist import SHIFT
from torchcaps.data.transforms import place

SEED = 2018
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Crowd:
    """`count` images of `objects` digits each: other images of the `same` class, or all of different classes."""

    digits: ImageSet
    objects: int = 2
    same: bool = False
    count: int = 2000

    @property
    def name(self) -> str:
        return f"{self.objects} digits of {'the same class' if self.same else 'different classes'}"

    def __len__(self) -> int:
        return self.count

    @cached_property
    def chosen(self) -> tuple[Int64[Tensor, "n k"], Int64[Tensor, "n k 2"]]:
        """Which digits, and by how much each is shifted; a larger crowd begins with the smaller."""
        if self.objects > len(self.digits.classes) and not self.same:
            raise UserError(f"there are no {self.objects} different classes in {self.digits.name}")
        state, found, missing = np.random.RandomState(SEED), [], self.count
        while missing > 0:
            which = torch.from_numpy(state.randint(len(self.digits), size=(BLOCK, self.objects)))
            shifts = torch.from_numpy(state.randint(-SHIFT, SHIFT + 1, size=(BLOCK, self.objects, 2)))
            labels, images = self.digits.labels[which].sort(1).values, which.sort(1).values
            kept = (labels == labels[:, :1]).all(1) if self.same else (labels.diff(dim=1) > 0).all(1)
            kept = (kept & (images.diff(dim=1) > 0).all(1)).nonzero()[:missing, 0]
            found.append((which[kept], shifts[kept]))
            missing -= len(kept)
        which, shifts = (torch.cat(column) for column in zip(*found, strict=True))
        return which, shifts

    def batches(self, size: int) -> Iterator[Batch]:
        """Labels and targets are in the order of the digits; of the same class, all labels are alike."""
        which, shifts = self.chosen
        height, width = (side + 2 * SHIFT for side in self.digits.images.shape[2:])
        for start in range(0, self.count, size):
            rows = slice(start, start + size)
            images = self.digits.images[which[rows].flatten()]
            placed = place(images, shifts[rows].flatten(0, 1) + SHIFT, height, width)
            sources = to_float(placed).unflatten(0, (-1, self.objects))
            yield Batch(sources.sum(1).clamp_(max=1), self.digits.labels[which[rows]], sources)
