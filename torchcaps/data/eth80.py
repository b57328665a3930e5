"""ETH-80: photographs of real things from known viewpoints, read from files that you have; nothing here fetches them.

Leibe and Schiele, "Analyzing appearance and contour based methods for object categorization", CVPR 2003: 8 categories
of 10 objects, 41 views of each on a blue background. The files belong into the folder `eth80` of the data folder
(`TORCHCAPS_DATA`), as `apple/01/90-045.png` (category, object, elevation, azimuth) or as the original cropped images
are called, `apple1/apple1-090-045.png`. They are brought to 32x32 pixels.

The elevation is counted from above: 0 is straight down, 90 the horizon. Azimuths are rarer the higher the camera is:

    0            1 view, which has no azimuth
    22, 45, 68   0, 90, 180, 270
    35           45, 135, 225, 315
    66           27, 63, 117, 153, 207, 243, 297, 333
    90           every 22.5 degrees, 16 views

The last three objects of each category are for testing (of the cars, whose numbers have gaps, 11, 12 and 14). Familiar
azimuths are those within 45 degrees of 0: 12 of the 40 views that have one, against 28 novel ones. Familiar elevations
are the three lowest, 66, 68 and 90: 28 views, against 13 novel ones.
"""

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8
from PIL import Image
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.core.files import read_regular
from torchcaps.data import sources
from torchcaps.data.dataset import DataSet
from torchcaps.data.folder.listing import files_below
from torchcaps.data.readers.pictures import open_image
from torchcaps.data.sets import ImageSet
from torchcaps.data.sources import Split
from torchcaps.data.viewpoints import By, hold_out

CATEGORIES = ("apple", "car", "cow", "cup", "dog", "horse", "pear", "tomato")
SIDE = 32
TRAINED = 0.7
"""Of the objects of a category."""
FAMILIAR: dict[By, tuple[int, ...]] = {"azimuth": (0, 22, 27, 45, 315, 333, 338), "elevation": (66, 68, 90)}
NAME = re.compile(
    r"(?:.*/)?(?P<category>[a-z]+)/?(?P<object>\d+)/(?:[a-z]+\d+-)?(?P<elevation>\d+)-(?P<azimuth>\d+)\.(png|jpg)"
)


class Photographs(NamedTuple):
    """All images, and of each its category, object and camera."""

    images: UInt8[Tensor, "n 3 h w"]
    category: Int64[Tensor, "n"]
    instance: Int64[Tensor, "n"]
    """The place of the object in its category, from 1."""
    elevation: Int64[Tensor, "n"]
    azimuth: Int64[Tensor, "n"]
    test: Bool[Tensor, "n"]
    sha256: str


@dataclass(frozen=True, eq=False)
class Eth80(DataSet):
    """All views, or those of the familiar or the novel viewpoints. For validation one object of each is kept back."""

    by: By | None = field(default=None, kw_only=True)
    familiar: bool = field(default=True, kw_only=True)

    def images(self, split: Split) -> ImageSet:
        whole, chosen = photographs(), self._chosen(split)
        return ImageSet(self.name, whole.images[chosen], whole.category[chosen], self.classes)

    def training_and_validation(self, held_out: int) -> tuple[ImageSet, ImageSet]:
        if not held_out:
            return super().training_and_validation(held_out)
        return hold_out(self.images("train"), photographs().instance[self._chosen("train")], held_out)

    def training_images(self) -> int:
        return len(self._chosen("train"))

    def hashes(self) -> dict[str, str]:
        return {"eth80": photographs().sha256} if self.is_here() else {}

    def fetch(self) -> dict[str, Path]:
        photographs()
        return {"eth80": folder()}

    def is_here(self) -> bool:
        return folder().is_dir()

    def _chosen(self, split: Split) -> Int64[Tensor, "m"]:
        whole = photographs()
        chosen = whole.test == (split == "test")
        if self.by is not None:
            seen = torch.isin(getattr(whole, self.by), torch.tensor(FAMILIAR[self.by]))
            chosen &= seen == self.familiar
        if self.by == "azimuth":
            chosen &= whole.elevation > 0
        return chosen.nonzero()[:, 0]


def folder() -> Path:
    return sources.cache_dir() / "eth80"


def photographs() -> Photographs:
    place = folder()
    files = sorted(map(Path, files_below(place))) if place.is_dir() else []
    found = [(path, match) for path in files if (match := NAME.fullmatch(path.relative_to(place).as_posix()))]
    if {match["category"] for _, match in found} != {*CATEGORIES}:
        raise UserError(
            f"eth80 cannot be fetched: put its images into {place}, as CATEGORY/OBJECT/ELEVATION-AZIMUTH.png, such as "
            f"apple/01/90-045.png, of {', '.join(CATEGORIES)}"
        )
    return _read(place, tuple((path, path.stat().st_mtime_ns) for path, _ in found))


@lru_cache(maxsize=1)
def _read(place: Path, files: tuple[tuple[Path, int], ...]) -> Photographs:
    digest, pictures, rows = hashlib.sha256(), [], []
    for path, _ in files:
        name = path.relative_to(place).as_posix()
        match = NAME.fullmatch(name)
        assert match is not None
        digest.update(name.encode() + read_regular(path))
        picture = open_image(path).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
        pictures.append(np.asarray(picture).transpose(2, 0, 1))
        rows.append((CATEGORIES.index(match["category"]), *map(int, match.group("object", "elevation", "azimuth"))))
    category, number, elevation, azimuth = torch.tensor(rows).unbind(1)
    instance, test = torch.zeros_like(number), torch.zeros(len(number), dtype=torch.bool)
    for kind in range(len(CATEGORIES)):
        here = category == kind
        numbers, instance[here] = number[here].unique(return_inverse=True)
        instance[here] += 1
        test[here] = instance[here] > TRAINED * len(numbers)
    images = torch.from_numpy(np.stack(pictures))
    return Photographs(images, category, instance, elevation, azimuth, test, digest.hexdigest())
