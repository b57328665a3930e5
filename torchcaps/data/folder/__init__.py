"""Your own images as a data set: listed, divided, decoded once, and recorded so that a run can be scored again.

A `Collection` is that record. It is kept with the decoded pictures in the cache, under a key of all paths, sizes and
times of change, so that a second run starts at once; and a run keeps its own copy as `data.json`, which works as a data
argument like the folder itself.
"""

import hashlib
import json
import os
import zlib
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.core.errors import UserError, argument
from torchcaps.core.files import make_private, read_regular, write_bytes
from torchcaps.core.progress import Progress, say
from torchcaps.core.seal import is_sealed, seal
from torchcaps.data.folder.checks import check_record
from torchcaps.data.folder.decode import Decoded, in_threads, map_decoded, write_decoded
from torchcaps.data.folder.division import TEST_SHARE, VALIDATION_SHARE, divide, find_copies
from torchcaps.data.folder.listing import SPLITS, Labelled, Listing, list_images, natural
from torchcaps.data.readers.pictures import open_image
from torchcaps.data.sets import ImageSet
from torchcaps.data.sources import cache_dir

RECORD = "data.json"
MOST_UNREADABLE = 0.05
LOOKED_AT = 64
"""Files that are opened to choose size and colour."""
LARGEST_SIDE = 128
SHOWN = 5
_VERSION = 1

Image = tuple[int, int, int]


@dataclass(frozen=True)
class Collection:
    """Labelled images, the split of each, and the size they are brought to."""

    name: str
    root: str
    classes: tuple[str, ...]
    image: Image
    files: dict[str, dict[str, list[str]]]
    """By split and class, relative to the root."""
    sha256: dict[str, str]
    """Of each split's decoded pixels, in the order of `rows`."""
    unreadable: list[str]
    notes: list[str]
    key: str
    seal: str = ""
    """Of this user on this machine, over all other fields; runs of earlier versions have none."""

    def rows(self, split: str) -> list[tuple[str, int]]:
        """Path and label of each image of a split, in the order in which they are decoded."""
        number = {name: index for index, name in enumerate(self.classes)}
        return sorted(
            ((path, number[name]) for name, paths in self.files[split].items() for path in paths),
            key=lambda row: _place(row[0]),
        )

    def images(self, split: str) -> ImageSet:
        """A split as a set whose pixels stay in the file until they are looked at."""
        rows, path = self.rows(split), _cache(self.key) / split
        if not path.exists():
            self._decode_again(split, rows, path)
        pixels = map_decoded(path, len(rows), self.image)
        labels = torch.tensor([label for _, label in rows], dtype=torch.int64)
        return ImageSet(self.name, torch.from_numpy(pixels), labels, self.classes)

    def _decode_again(self, split: str, rows: list[tuple[str, int]], path: Path) -> None:
        if not Path(self.root).is_dir():
            missing = f"the images of this run are no longer at {self.root}"
            raise UserError(f"{missing}: put them back, or use {argument('data')}")
        try:
            with Progress(f"{self.name}: reading {len(rows):,} images", len(rows), "images") as bar:
                again = write_decoded([os.path.join(self.root, file) for file, _ in rows], self.image, path, bar, 0)
        except OSError as error:
            raise UserError(f"cannot keep the decoded images in {path.parent}: {error.strerror or error}") from error
        if again.sha256 != self.sha256[split]:
            path.unlink()
            what = next(iter(again.unreadable.values()), f"the {split} images are not the ones this run began with")
            raise UserError(f"{self.root} has changed: {what}; score it as it is with {argument('data')}")

    def here(self) -> bool:
        """Whether the images are still there, or have been decoded already."""
        return Path(self.root).is_dir() or all((_cache(self.key) / split).exists() for split in SPLITS)

    def about(self) -> list[str]:
        """Facts and warnings about the data, one line each."""
        counts = ", ".join(f"{len(self.rows(split)):,} {split}" for split in SPLITS)
        c, h, w = self.image
        return [f"{counts}; at {h}x{w} pixels, {'colour' if c == 3 else 'grey'}", *self.notes]

    def save(self, path: Path) -> None:
        sealed = replace(self, seal=seal(self._content()))
        write_bytes(path, (json.dumps(asdict(sealed), indent=1) + "\n").encode())

    def _content(self) -> str:
        return json.dumps(asdict(replace(self, seal="")))

    def is_ours(self) -> bool:
        """Whether this user made the record on this machine; of earlier versions, whether the cache has it as well."""
        if self.seal:
            return is_sealed(self._content(), self.seal)
        with suppress(UserError):
            return replace(load(str(_cache(self.key) / RECORD)), seal="") == self
        return False

    def found_at(self, root: Path) -> "Collection":
        """The same images at another place, and nothing outside of it.

        They are decoded under a key of their own, so that nothing else that was decoded here is taken for them.
        """
        place = os.path.realpath(root)
        for split in SPLITS:
            for path, _ in self.rows(split):
                if not os.path.realpath(os.path.join(place, path)).startswith(place + os.sep):
                    raise UserError(f"{path} is not inside {place}: the record of this run cannot be used")
        key = hashlib.sha256(f"{place} {self._content()}".encode(errors="surrogatepass")).hexdigest()[:32]
        return replace(self, root=place, key=key)


@dataclass(frozen=True)
class Foreign(Collection):
    """A record that came from elsewhere: its classes are known, but the folder that it names is not opened."""

    def images(self, split: str) -> ImageSet:
        raise UserError(
            f"this run was not made here, so its images are not looked for at {self.root}: to use images of yours, "
            f"give {argument('data', 'FOLDER')}"
        )

    def here(self) -> bool:
        return False


def whose(record: Collection, path: Path, root: str | Path | None = None) -> Collection:
    """A record that may be opened: one's own, one whose images are beside it, or where the user says (`root`)."""
    if root is not None:
        return record.found_at(Path(root))
    if record.is_ours():
        return record
    beside = os.path.join(path.parent, record.root)
    if os.path.realpath(beside).startswith(os.path.realpath(path.parent) + os.sep):
        return record.found_at(Path(beside))
    return Foreign(**{field.name: getattr(record, field.name) for field in fields(record)})


def is_record(name: str) -> bool:
    return Path(name).name == RECORD


def load(path: str) -> Collection:
    try:
        status = os.stat(path)
        # The time alone does not tell: on many systems it stands still for some milliseconds.
        return _load(path, (status.st_mtime_ns, status.st_size, status.st_ino))
    except UserError:
        raise
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} is not a record of images: {error}") from None


@lru_cache(maxsize=8)
def _load(path: str, changed: tuple[int, ...]) -> Collection:
    content: dict[str, Any] = json.loads(read_regular(path))
    check_record(content)
    return Collection(**{**content, "classes": tuple(content["classes"]), "image": tuple(content["image"])})


@dataclass(frozen=True)
class Survey:
    """What is known from the file names and some of the files."""

    listing: Listing
    image: Image


@lru_cache(maxsize=4)
def survey(path: str, size: tuple[int, int] | None = None) -> Survey:
    """List the files and choose size and colour: grey if all that are looked at are, at most 128 pixels a side.

    Small images of one size are taken as they are; others are scaled to a size of their median shape.
    """
    place = Path(path).expanduser().resolve()
    listing = list_images(place)
    step = max(1, len(listing.files) // LOOKED_AT)
    sample = [listing.root / file.path for file in listing.files[::step]]
    found = [look for look in in_threads(_look, sample, len(sample)) if look is not None]
    if not found:
        raise UserError(f"{place}: none of the {len(sample)} images that were tried can be read")
    heights, widths, colours = zip(*found, strict=True)
    if size is None:
        size = int(np.median(heights)), int(np.median(widths))
        alike = len(set(zip(heights, widths, strict=True))) == 1 and max(size) <= LARGEST_SIDE
        size = size if alike else _size(*size)
    return Survey(listing, (3 if any(colours) else 1, *size))


def _size(height: int, width: int) -> tuple[int, int]:
    """The longer side at most 128 pixels, the other in proportion but at least half of it, both in steps of 4."""
    longer = max(height, width)
    scale = min(1.0, LARGEST_SIDE / longer)
    height, width = (max(8, 4 * round(max(side, longer / 2) * scale / 4)) for side in (height, width))
    return height, width


def _look(path: str | Path) -> tuple[int, int, bool] | None:
    """Height, width (of a large JPEG perhaps a half, quarter or eighth, but no less than 128) and whether in colour."""
    try:
        picture = open_image(path, at_least=LARGEST_SIDE)
    except UserError:
        return None
    small = np.asarray(picture.convert("RGB").resize((32, 32)), dtype=np.int16)
    return picture.height, picture.width, bool(np.ptp(small, axis=2).max() > 2)


def collect(path: str, image: Image, classes: tuple[str, ...] | None = None) -> Path:
    """Bring all images of a folder or CSV to one size, and return the record of them.

    With `classes` everything is for testing, labelled by these: another folder for a network that is trained already.
    """
    import filelock

    place = Path(path).expanduser().resolve()
    listing = list_images(place) if classes is None else _for_testing(place, classes)
    key = _key(listing, image, classes)
    record = _cache(key) / RECORD
    try:
        make_private(record.parent.parent)
        record.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(record.parent / ".lock"):
            if not record.exists():
                _collect(place.stem if place.is_file() else place.name, listing, image, classes, key).save(record)
    except OSError as error:
        raise UserError(f"cannot keep the decoded images in {record.parent}: {error.strerror or error}") from error
    return record


def _collect(name: str, listing: Listing, image: Image, classes: tuple[str, ...] | None, key: str) -> Collection:
    notes: list[str] = []
    copies = find_copies(listing.root, listing.files)
    files = listing.files if classes is not None else _divided(listing, copies, notes)
    allowed = max(1, int(MOST_UNREADABLE * len(files)))
    parts: dict[str, Decoded] = {}
    kept: dict[str, list[Labelled]] = {}
    unreadable: list[str] = []
    with Progress(f"{name}: reading {len(files):,} images", len(files), "images") as bar:
        for split in SPLITS:
            chosen = sorted((file for file in files if file.split == split), key=lambda file: _place(file.path))
            paths = [os.path.join(listing.root, file.path) for file in chosen]
            part = write_decoded(paths, image, _cache(key) / split, bar, allowed - len(unreadable))
            parts[split], kept[split] = part, [chosen[index] for index in part.kept]
            unreadable += part.unreadable.values()
            if len(unreadable) > allowed:
                raise UserError(
                    f"{listing.root}: {len(unreadable)} of the first {bar.done:,.0f} images cannot be read, more than "
                    f"{MOST_UNREADABLE:.0%} of all {len(files):,}; the first: {unreadable[0]}"
                )
    names = classes or listing.classes
    missing = [name for name in names if classes is None and all(file.label != name for file in kept["train"])]
    if missing:
        raise UserError(f"{listing.root}: class '{missing[0]}' has no image to train on that can be read")
    if not kept["test"]:
        raise UserError(f"{listing.root} has too few images to hold any out for testing: give each class 3 or more")
    rate = f"{bar.done:,.0f} images read in {bar.done / bar.rate:.1f} s ({bar.rate:,.0f} a second)"
    say(f"{name}: {rate}")
    return Collection(
        name,
        str(listing.root),
        names,
        image,
        {split: _by_class(part) for split, part in kept.items()},
        {split: part.sha256 for split, part in parts.items()},
        unreadable,
        [*notes, *_remarks(listing, kept, parts, copies)],
        key,
    )


def _divided(listing: Listing, copies: dict[str, str], notes: list[str]) -> list[Labelled]:
    """Splits as they are given, and what is missing of them cut from the training images."""
    files, given = list(listing.files), listing.given_splits
    if "validation" in given and "test" not in given:
        notes.append("there is no test split: the validation images given are scored at the end instead")
        files = [file._replace(split="test") if file.split == "validation" else file for file in files]
        given = given - {"validation"} | {"test"}
    shares = {"test": TEST_SHARE, "validation": VALIDATION_SHARE}
    shares = {split: share for split, share in shares.items() if split not in given}
    fixed = [file for file in files if file.split not in (None, "train")]
    return fixed + divide([file for file in files if file.split in (None, "train")], copies, shares)


def _for_testing(place: Path, classes: tuple[str, ...]) -> Listing:
    listing = list_images(place, testing=True)
    unknown = sorted(set(listing.classes) - set(classes))
    if unknown:
        raise UserError(f"{place} has the class '{unknown[0]}', which this network does not know: {', '.join(classes)}")
    files = [file for file in listing.files if file.split in (None, "test")] or listing.files
    return Listing(listing.root, tuple(file._replace(split="test") for file in files))


def _place(path: str) -> tuple[int, str]:
    """A sorting key that mixes the classes, so that the first few images are of all classes."""
    return zlib.crc32(path.encode(errors="surrogateescape")), path


def _by_class(files: Sequence[Labelled]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for file in files:
        groups[file.label].append(file.path)
    return {label: sorted(groups[label], key=natural) for label in sorted(groups, key=natural)}


def _remarks(
    listing: Listing, kept: dict[str, list[Labelled]], parts: dict[str, Decoded], copies: dict[str, str]
) -> list[str]:
    """Warnings about the data, one line each."""
    unreadable = [reason for part in parts.values() for reason in part.unreadable.values()]
    lines = [f"left out: {reason}" for reason in unreadable[:SHOWN]]
    if len(unreadable) > SHOWN:
        lines.append(f"left out: {len(unreadable) - SHOWN} more, all listed in {RECORD}")
    if listing.others:
        lines.append(f"left alone, no images by their names: {listing.others:,}")
    lines += [f"class '{name}' has no images and is left out" for name in listing.empty]
    tested, counts = {file.label for file in kept["test"]}, Tally(file.label for file in kept["train"])
    untested = sorted(counts.keys() - tested, key=natural)
    lines += [f"class '{name}' has {counts[name]} images to train on and none to test" for name in untested]
    return lines + _same_pictures(kept, parts) + _same_labels(listing.files, copies)


def _same_pictures(kept: dict[str, list[Labelled]], parts: dict[str, Decoded]) -> list[str]:
    trained = dict(zip(parts["train"].digests, kept["train"], strict=True))
    lines = []
    for split in ("validation", "test"):
        pairs = zip(parts[split].digests, kept[split], strict=True)
        both = [(file.path, trained[digest].path) for digest, file in pairs if digest in trained]
        if both:
            files = f"{both[0][0]} and {both[0][1]}"
            lines.append(f"{len(both):,} {split} images are also trained on (the same pixels), such as {files}")
    return lines


def _same_labels(files: Sequence[Labelled], copies: dict[str, str]) -> list[str]:
    labels: dict[str, set[str]] = defaultdict(set)
    for file in files:
        if file.path in copies:
            labels[copies[file.path]].add(file.label)
    several = next((names for names in labels.values() if len(names) > 1), None)
    lines = [f"{len(copies):,} files are copies of one another"] if copies else []
    return [*lines, f"the same image is labelled {' and '.join(sorted(several))}"] if several else lines


def _key(listing: Listing, image: Image, classes: tuple[str, ...] | None) -> str:
    """Changes with any path, size, time of change, label or split, and with the size of the decoded pictures."""
    digest = hashlib.sha256(repr((_VERSION, str(listing.root), image, classes)).encode(errors="surrogateescape"))
    for file in listing.files:
        try:
            status = os.stat(os.path.join(listing.root, file.path))
            state = (status.st_size, status.st_mtime_ns)
        except OSError:
            state = None
        digest.update(repr((*file, state)).encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]


def _cache(key: str) -> Path:
    return cache_dir() / "own-images" / key
