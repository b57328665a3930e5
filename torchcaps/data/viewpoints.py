"""Where smallNORB's camera stood, and the split into familiar and novel viewpoints.

Hinton, Sabour and Frosst, "Matrix capsules with EM routing", 2018, section 5.1: train on a third of the azimuths or
elevations of the training objects, test on the same third (familiar) and on the rest (novel) of the test objects.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.data import sources
from torchcaps.data.readers import norb
from torchcaps.data.sets import ImageSet

By = Literal["azimuth", "elevation"]
FAMILIAR: dict[By, tuple[int, ...]] = {"azimuth": (300, 320, 340, 0, 20, 40), "elevation": (30, 35, 40)}


class Viewpoints(NamedTuple):
    """Of each image: which of the ten objects of its category, the camera's angles in degrees, and the lighting."""

    instance: Int64[Tensor, "n"]
    elevation: Int64[Tensor, "n"]
    azimuth: Int64[Tensor, "n"]
    lighting: Int64[Tensor, "n"]


def decode(info: Int64[Tensor, "n 4"]) -> Viewpoints:
    """From the numbers in the file: elevation 0 to 8 is 30 to 70 degrees, azimuth 0 to 34 is 0 to 340."""
    instance, elevation, azimuth, lighting = info.unbind(1)
    return Viewpoints(instance, 30 + 5 * elevation, 10 * azimuth, lighting)


def read(files: str, split: sources.Split) -> Viewpoints:
    """The viewpoints of `smallnorb` or `norb-style`, image by image in the order of the set."""
    path = sources.fetch(f"{files}/{split}-info")
    info = norb.read(path)
    if info.ndim != 2 or info.shape[1] != len(Viewpoints._fields):
        raise UserError(f"{path} has an array of {info.shape}, should be images x 4: fetch it anew")
    return decode(torch.from_numpy(info).long())


def hold_out(images: ImageSet, instance: Int64[Tensor, "n"], most: int) -> tuple[ImageSet, ImageSet]:
    """Without the last object of each category, and up to `most` images of it for validation: testing asks about new
    objects as well."""
    new = instance == instance.max()
    kept = images.take(new.nonzero()[:, 0])
    return images.take((~new).nonzero()[:, 0]), kept.split(min(most, len(kept)))[1]


def select(views: Viewpoints, by: By, familiar: bool) -> Int64[Tensor, "m"]:
    """Which images are seen from familiar viewpoints, or which are not."""
    return (torch.isin(getattr(views, by), torch.tensor(FAMILIAR[by])) == familiar).nonzero()[:, 0]
