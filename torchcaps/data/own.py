"""One's own images as a data set: a folder or a CSV, and the record that a run keeps of them."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torchcaps.core.errors import UserError
from torchcaps.data import folder
from torchcaps.data.dataset import DataSet, Image
from torchcaps.data.folder.listing import is_own
from torchcaps.data.sets import ImageSet
from torchcaps.data.sources import Split
from torchcaps.data.transforms import PRESETS


@dataclass(frozen=True, eq=False)
class OwnImages(DataSet):
    """A folder or a CSV of which only the names, and some files, were looked at: nothing is decoded before it must.

    Or, with what is `known`, images that are listed, divided and decoded already: what `data.json` says.
    """

    path: Path = field(kw_only=True)
    size: tuple[int, int] | None = field(default=None, kw_only=True)
    testing: bool = field(default=False, kw_only=True)
    """All of it is for testing, unless it has a test split: another folder for a network that is trained already."""
    known: folder.Collection | None = field(default=None, kw_only=True)

    own = True

    @property
    def title(self) -> str:
        return self.known.name if self.known else self.path.stem

    def image_for(self, usual: Image) -> Image:
        return self.image if self.known else (usual[0], *self.size) if self.size else usual

    @cached_property
    def collection(self) -> folder.Collection:
        return self.known or folder.load(str(self._collect(self.image)))

    def _collect(self, image: Image) -> Path:
        return folder.collect(self.name, image, self.classes if self.testing else None)

    def images(self, split: Split) -> ImageSet:
        return self.collection.images(split)

    def hashes(self) -> dict[str, str]:
        return {f"{self.collection.name}/{split}": digest for split, digest in self.collection.sha256.items()}

    def is_here(self) -> bool:
        return self.known is None or self.known.here()

    def prepared(self, image: Image, run: Path) -> DataSet:
        kept = run / folder.RECORD
        if kept.exists():
            return record(kept)
        return self if self.known else record(self._collect(image))

    def keep(self, run: Path) -> list[str]:
        self.collection.save(run / folder.RECORD)
        return self.collection.about()

    def training_images(self) -> int:
        """Of a folder, however its images are divided, and whichever cannot be read."""
        if self.known:
            return len(self.known.rows("train"))
        listing = folder.survey(self.name, self.size).listing
        count = sum(file.split in (None, "train") for file in listing.files)
        return max(1, int(0.7 * count) - 2 * len(listing.classes))

    def training_and_validation(self, held_out: int) -> tuple[ImageSet, ImageSet]:
        return self.collection.images("train"), self.collection.images("validation")


def record(path: Path, root: str | Path | None = None) -> OwnImages:
    """The images that a `data.json` lists, at the place that it names, or at `root` if that is given."""
    found = folder.whose(folder.load(str(path)), path, root)
    return _own(path, found.image, found.classes, known=found)


def _own(path: Path, image: Image, classes: tuple[str, ...], **options: Any) -> OwnImages:
    """Letters and signs are not mirrored: grey images are only shifted, photographs are varied as photographs are.

    Of larger photographs an eighth of a side is what 4 pixels are of 32.
    """
    natural = PRESETS["natural"]
    usual = replace(natural, shift=max(natural.shift, min(image[1:]) // 8)) if image[0] == 3 else PRESETS["shift"]
    return OwnImages(str(path), "your own images", image, classes, **{"augment": usual, "path": path, **options})


def own_images(name: str, size: tuple[int, int] | None = None, like: DataSet | None = None) -> OwnImages | None:
    """The images at a path, brought to `size`, or to size and classes of the set that they should be `like`.

    None if the name is not that of a folder, a CSV or a record.
    """
    if not folder.is_record(name) and not is_own(name):
        return None
    path = Path(name).expanduser().resolve()
    if folder.is_record(name):
        found = record(path)
        if like and (found.image, found.classes) != (like.image, like.classes):
            raise UserError(f"{name} has other images or classes than this network was trained on")
        return found
    if like:
        return _own(path, like.image, like.classes, augment=PRESETS["none"], testing=True)
    seen = folder.survey(str(path), size)
    return _own(path, seen.image, seen.listing.classes, size=size)
