"""The table of toys, and the arrays of a set of scenes."""

from collections.abc import Callable
from itertools import starmap
from typing import NamedTuple

import numpy as np

from torchcaps.data.synthetic.norb_style import SIDE, Scenes
from torchcaps.data.synthetic.norb_style.creatures import ANIMALS, HUMANS, animal, human
from torchcaps.data.synthetic.norb_style.render import render
from torchcaps.data.synthetic.norb_style.solids import Solid
from torchcaps.data.synthetic.norb_style.vehicles import AIRPLANES, CARS, TRUCKS, airplane, car, truck
from torchcaps.data.synthetic.norb_style.volume import voxels
from torchcaps.kernels.processor_time import one_thread

TOYS: dict[str, tuple[Solid, ...]] = {
    "animal": tuple(starmap(animal, ANIMALS)),
    "human": tuple(starmap(human, HUMANS)),
    "airplane": tuple(map(airplane, AIRPLANES)),
    "truck": tuple(starmap(truck, TRUCKS)),
    "car": tuple(starmap(car, CARS)),
}


class Arrays(NamedTuple):
    """What smallNORB's three files hold: pairs uint8 [n 2 48 48], categories int32 [n], and info int32 [n 4]."""

    dat: np.ndarray
    cat: np.ndarray
    info: np.ndarray


def make(scenes: Scenes, show: Callable[[int], None] = lambda count: None) -> Arrays:
    """Render; `show` is told of so many more bytes. As in smallNORB, the category changes from image to image."""
    instances, elevations, azimuths, lightings = scenes
    shape = (len(instances), len(elevations), len(azimuths), len(lightings), len(TOYS))
    degrees = [30 + 5 * elevation for elevation in elevations], [10 * azimuth for azimuth in azimuths]
    dat = np.empty((*shape, 2, SIDE, SIDE), np.uint8)
    # Tens of thousands of short operations: on a busy machine threads would wait for each other most of the time.
    with one_thread():
        for number, instance in enumerate(instances):
            for category, toys in enumerate(TOYS.values()):
                pairs = render(voxels(toys[instance]), *degrees, lightings, show)
                dat[number, :, :, :, category] = pairs.numpy()
    *info, cat = np.meshgrid(*scenes, range(len(TOYS)), indexing="ij")
    numbers = np.stack([column.ravel() for column in info], 1).astype(np.int32)
    return Arrays(dat.reshape(-1, 2, SIDE, SIDE), cat.ravel().astype(np.int32), numbers)
