"""One's own images as a data set: a folder or a CSV, and the record that a run keeps of them."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torchcaps.core.errors import UserError
from torchcaps.data import folder
from torchcaps.data.dataset import DataSet, Image
from torchcaps.data.folder.listing import is_own
from torchcaps.data.sets import ImageSet, ScoredSet
from torchcaps.data.sources import Split
from torchcaps.data.transforms import PRESETS, Augmentation


@dataclass(frozen=True, eq=False)
class Record(DataSet):
    """Images that are listed, divided and decoded: what `data.json` says."""

    collection: folder.Collection = field(kw_only=True)

    own = True

    @property
    def title(self) -> str:
        return self.collection.name

    def images(self, split: Split) -> ImageSet:
        return self.collection.images(split)

    def hashes(self) -> dict[str, str]:
        return {f"{self.title}/{split}": digest for split, digest in self.collection.sha256.items()}

    def is_here(self) -> bool:
        return self.collection.here()

    def prepared(self, image: Image, run: Path) -> DataSet:
        return _of_run(run) or self

    def keep(self, run: Path) -> list[str]:
        self.collection.save(run / folder.RECORD)
        return self.collection.about()

    def training_images(self) -> int:
        return len(self.collection.rows("train"))

    def training_and_validation(self, held_out: int) -> tuple[ImageSet, ImageSet]:
        return self.collection.images("train"), self.collection.images("validation")


@dataclass(frozen=True, eq=False)
class Folder(DataSet):
    """A folder or a CSV of which only the names, and some files, were looked at. Nothing is decoded before it must."""

    path: Path = field(kw_only=True)
    size: tuple[int, int] | None = field(default=None, kw_only=True)
    testing: bool = field(default=False, kw_only=True)
    """All of it is for testing, unless it has a test split: another folder for a network that is trained already."""

    own = True

    @property
    def title(self) -> str:
        return self.path.stem

    def image_for(self, usual: Image) -> Image:
        return (usual[0], *self.size) if self.size else usual

    @cached_property
    def record(self) -> Record:
        return self._collected(self.image)

    def _collected(self, image: Image) -> Record:
        return record(folder.collect(self.name, image, self.classes if self.testing else None))

    def images(self, split: Split) -> ImageSet:
        return self.record.images(split)

    def hashes(self) -> dict[str, str]:
        return self.record.hashes()

    def prepared(self, image: Image, run: Path) -> DataSet:
        return _of_run(run) or self._collected(image)

    def training_images(self) -> int:
        """However they are divided, and whichever cannot be read."""
        listing = folder.survey(self.name, self.size).listing
        count = sum(file.split in (None, "train") for file in listing.files)
        return max(1, int(0.7 * count) - 2 * len(listing.classes))

    def training_and_validation(self, held_out: int) -> tuple[ImageSet, ImageSet]:
        return self.record.training_and_validation(held_out)

    def test(self, pairs: int = 0) -> ScoredSet:
        return self.record.images("test")


def record(path: Path) -> Record:
    """The images that a `data.json` lists."""
    found = folder.load(str(path))
    return Record(
        str(path), "your own images", found.image, found.classes, augment=_usual(found.image), collection=found
    )


def _of_run(run: Path) -> Record | None:
    kept = run / folder.RECORD
    return record(kept) if kept.exists() else None


def own_images(name: str, size: tuple[int, int] | None = None, like: DataSet | None = None) -> Folder | Record | None:
    """The images at a path, brought to `size`, or to size and classes of the set that they should be `like`.

    None if the name is not that of a folder, a CSV or a record.
    """
    if folder.is_record(name):
        found = record(Path(name).expanduser().resolve())
        if like and (found.image, found.classes) != (like.image, like.classes):
            raise UserError(f"{name} has other images or classes than this network was trained on")
        return found
    if not is_own(name):
        return None
    path = Path(name).expanduser().resolve()
    if like:
        return Folder(str(path), "your own images", like.image, like.classes, path=path, testing=True)
    seen = folder.survey(str(path), size)
    usual = _usual(seen.image)
    return Folder(str(path), "your own images", seen.image, seen.listing.classes, augment=usual, path=path, size=size)


def _usual(image: Image) -> Augmentation:
    """Letters and signs are not mirrored: grey images are only shifted, photographs are varied as photographs are."""
    return PRESETS["natural" if image[0] == 3 else "shift"]
