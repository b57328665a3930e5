"""norb-style: stereo pairs of toys, rendered here in the layout and the file format of smallNORB.

Five categories of ten toys each, of one colour, 9 elevations, 18 azimuths, 6 lightings, two cameras; five toys of each
category for training, five others for testing. Here 48x48, the size to which the papers bring smallNORB's 96x96.

It is not smallNORB. There, real toys were photographed; here fifty toys are built of simple solids and rendered: no
texture, no noise of a camera, one material, a plain table, four lamps with soft shadows. Elevations, azimuths, the
number of lightings, the two cameras' distance and the division of the toys are smallNORB's. Shapes vary less than real
ones do, and a number measured here says nothing about an error on smallNORB: only comparisons between networks carry
over, if at all. `eth80` has real photographs.

    solids.py      signed distances of boxes, limbs, prisms, ..., and how to join them
    creatures.py   vehicles.py    of each category ten rows of proportions, and what is built of a row
    volume.py      a toy as a grid     render.py    the pictures of a grid     making.py    the arrays of a set

Only what the catalogue needs is here: rendering imports torch.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from torchcaps.core.progress import Progress
from torchcaps.data.readers import norb

SIDE = 48
CATEGORIES = 5
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
PARTS = ("dat", "cat", "info")


class Scenes(NamedTuple):
    """Which pictures: every combination, in the numbers that stand in the files (see `viewpoints.decode`)."""

    instances: tuple[int, ...]
    elevations: tuple[int, ...] = tuple(range(9))
    azimuths: tuple[int, ...] = tuple(range(0, 36, 2))
    lightings: tuple[int, ...] = tuple(range(6))

    @property
    def pairs(self) -> int:
        return CATEGORIES * prod(len(numbers) for numbers in self)


@dataclass(frozen=True)
class Rendered:
    """A source of files like any other, but for the way they come about."""

    scenes: Scenes

    def __str__(self) -> str:
        return "the renderer"

    def collect(self, folder: Path, progress: Progress) -> None:
        from torchcaps.data.synthetic.norb_style.making import make

        progress.total = self.scenes.pairs * 2 * SIDE * SIDE
        for part, array in zip(PARTS, make(self.scenes, progress.update), strict=True):
            norb.write(folder / f"{part}.mat", array)


def rendered(split: str) -> Rendered:
    return Rendered(Scenes(INSTANCES[split]))
