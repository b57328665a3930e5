"""What a data set is: one object that knows its images, its classes, its splits and how it is augmented.

`resolve` (in `named.py`) makes it of a name, a folder or tensors, once; who needs to know something asks the object.
The kinds are `NamedSet` (files by name), `PairedSet` (MultiMNIST), `ViewpointSet`, `OwnImages` (a folder or a CSV) and
`TensorSet` (tensors, or a `torch.utils.data.Dataset`).
"""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from torchcaps.core.errors import UserError
from torchcaps.data.sets import Augment, ImageSet, ImageStream, ScoredSet, Stream
from torchcaps.data.sources import Split
from torchcaps.data.transforms import PRESETS, Augmentation, place

Image = tuple[int, int, int]
DIGITS = tuple("0123456789")
TEST_PAIRS = 10_000
PLACEMENT_SEED = 2017
PLENTY = 2**16


@dataclass(frozen=True, eq=False)
class DataSet:
    """Images of the size `image` (channels, height, width), `objects` things in each, of so many `classes`.

    Images that are larger are cropped: anywhere while training, in the middle for testing. Smaller ones are laid on an
    empty canvas: anywhere while training, at fixed random places for testing.
    """

    name: str
    about: str
    image: Image
    classes: tuple[str, ...] = DIGITS
    _: KW_ONLY
    objects: int = 1
    augment: Augmentation = PRESETS["none"]
    """What varies while training, unless something else is chosen."""

    own = False
    """Whether they are somebody's own images: a network then takes the classes from them."""
    paired = False
    """Whether test images are made of others, as many as one asks for."""
    overlay = "sum"
    """How several objects become one image."""

    @property
    def title(self) -> str:
        """What to call the set to a person."""
        return self.name

    @property
    def handwritten(self) -> bool:
        """Whether pictures of digits, on paper or on a screen, are to be prepared as MNIST's were."""
        return False

    def image_for(self, usual: Image) -> Image:
        """What a network that is usually for images of `usual` is given; only files can be brought to another size."""
        return self.image

    def images(self, split: Split) -> ImageSet:
        """The images of a split as they are stored."""
        raise NotImplementedError

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of what the images are read from."""
        raise NotImplementedError

    def fetch(self) -> dict[str, Path]:
        """Bring the files to this machine."""
        return {}

    def is_here(self) -> bool:
        """Whether the test images are on this machine."""
        return True

    def prepared(self, image: Image, run: Path) -> "DataSet":
        """What a network for `image` is trained on in the folder `run`: decoded, and the same when it is resumed."""
        return self

    def keep(self, run: Path) -> list[str]:
        """Write what a run needs to find the images again; returns what a person should know about them, in lines."""
        return []

    def training_images(self) -> int:
        """At least so many images will be trained on."""
        return PLENTY

    def training_and_validation(self, held_out: int) -> tuple[ImageSet, ImageSet]:
        """What to learn from, and what to watch meanwhile."""
        training = self.images("train")
        return training.split(min(held_out, len(training) // 10))

    def stream(
        self, images: ImageSet, seed: int, pool: int | None = None, augment: Augmentation | None = None
    ) -> Stream:
        """Images as the endless stream that training reads; `augment` takes the place of the set's own."""
        if pool is not None:
            raise UserError(f"a pool of pairs is for MultiMNIST; {self.name} has single images")
        return ImageStream(images, seed, self._layout(images, self.augment if augment is None else augment))

    def _layout(self, images: ImageSet, augment: Augmentation) -> Augment | None:
        if images.images.shape[2:] == self.image[1:]:
            return None if augment == Augmentation() else augment
        return partial(self._placed, offsets=self._offsets(images), augment=augment)

    def _placed(self, batch: Tensor, generator: Generator, offsets: tuple[int, int], augment: Augmentation) -> Tensor:
        low, high = offsets
        where = torch.randint(low, high + 1, (len(batch), 2), generator=generator)
        if high > 0:
            return augment(place(batch, where, *self.image[1:]), generator)
        # What comes in from the sides of a crop when it is turned or shrunk should be picture, as far as there is any.
        return place(augment(batch, generator), where, *self.image[1:])

    def _offsets(self, images: ImageSet) -> tuple[int, int]:
        """Where the corner of an image may lie on the canvas: before it, for crops, or inside."""
        room = self.image[1] - images.images.shape[2]
        return min(0, room), max(0, room)

    def scored(self, images: ImageSet, pairs: int = TEST_PAIRS) -> ScoredSet:
        """Images in the fixed order and layout in which they are scored."""
        if images.images.shape[2:] == self.image[1:]:
            return images
        low, high = self._offsets(images)
        offsets = torch.full((len(images), 2), (low + high) // 2)
        if high > 0:
            offsets = torch.from_numpy(np.random.RandomState(PLACEMENT_SEED).randint(0, high + 1, (len(images), 2)))
        blocks = zip(images.images.split(1000), offsets.split(1000), strict=True)
        laid_out = torch.cat([place(block, where, *self.image[1:]) for block, where in blocks])
        return ImageSet(self.name, laid_out, images.labels, self.classes)

    def test(self, pairs: int = TEST_PAIRS) -> ScoredSet:
        """The test set, ready to be scored; of MultiMNIST so many pairs."""
        return self.scored(self.images("test"), pairs)
