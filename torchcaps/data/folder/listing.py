"""Image files and their labels, from a folder with one sub-folder for each class or from a CSV file."""

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torchcaps.core.errors import UserError
from torchcaps.core.files import read_regular
from torchcaps.data.readers.pictures import SUFFIXES

SPLITS = ("train", "validation", "test")
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
_PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
_LABEL_COLUMNS = ("label", "class", "category", "target", "class_name")
_SPLIT_COLUMNS = ("split", "set", "subset", "partition")


class Labelled(NamedTuple):
    """A file, relative to the listing's root, its class, and its split where the user made the splits."""

    path: str
    label: str
    split: str | None = None


@dataclass(frozen=True)
class Listing:
    root: Path
    files: tuple[Labelled, ...]
    others: int = 0
    """Files in the folders that are no images by their names."""
    empty: tuple[str, ...] = field(default_factory=tuple)
    """Classes without an image."""

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({file.label for file in self.files}, key=natural))

    @property
    def given_splits(self) -> frozenset[str]:
        return frozenset(file.split for file in self.files if file.split)


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A sorting key that puts "9" before "10" and does not mind upper case."""
    parts = re.split(r"(\d+)", name.casefold())
    # Of two numbers the longer one is larger: there is no limit to how long one may be.
    numbers = {part: part.lstrip("0") for part in parts if part.isdecimal()}
    return [(0, len(numbers[part]), numbers[part]) if part in numbers else (1, 0, part) for part in parts if part], name


def readable(name: str) -> str:
    """A name of a file or class as text: bytes that are not UTF-8 become question marks."""
    return name.encode(errors="replace").decode()


def is_own(name: str) -> bool:
    """Whether a data argument is a path to images rather than the name of a data set."""
    return Path(name).is_dir() or Path(name).suffix.lower() == ".csv"


def list_images(path: str | Path, testing: bool = False) -> Listing:
    """What is in a folder or a CSV; nothing is opened yet. For `testing` alone, one class will do."""
    path = Path(path).expanduser().resolve()
    listing = _from_folder(path) if path.is_dir() else _from_csv(path)
    if not listing.files:
        raise UserError(f"{path} has no images: one sub-folder per class with {', '.join(sorted(SUFFIXES))} files")
    if testing:
        return listing
    if len(listing.classes) < 2:
        raise UserError(f"{path} has one class only ('{''.join(listing.classes)}'): at least two are needed")
    if listing.given_splits and "train" not in listing.given_splits:
        raise UserError(f"{path} has a {min(listing.given_splits)} split but no images to train on")
    return listing


def is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in SUFFIXES


def files_below(folder: str | Path) -> Iterator[str]:
    """The files in a folder and its sub-folders, in a natural order; hidden ones are passed over.

    Every folder is read once, however many links lead to it: first where it is, then what is only linked.
    """
    seen: set[str] = set()
    links = [str(folder)]
    while links:
        yield from _real_files(links.pop(0), seen, links)


def _real_files(folder: str, seen: set[str], links: list[str]) -> Iterator[str]:
    """The files below a folder that has not been `seen`; links to other folders are put into `links`."""
    open_folders = [iter(_entries_once(folder, seen))]
    while open_folders:
        entry = next(open_folders[-1], None)
        if entry is None:
            open_folders.pop()
        elif not _is_folder(entry):
            yield entry.path
        elif entry.is_symlink():
            links.append(entry.path)
        else:
            open_folders.append(iter(_entries_once(entry.path, seen)))


def _entries_once(folder: str, seen: set[str]) -> list[os.DirEntry[str]]:
    place = os.path.realpath(folder)
    if place in seen:
        return []
    seen.add(place)
    return _entries(folder)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Not so for a link that leads nowhere, or where one may not look."""
    return os.path.isdir(entry.path)


def _from_folder(root: Path) -> Listing:
    folders = [entry for entry in _entries(root) if _is_folder(entry) and os.path.realpath(entry.path) != str(root)]
    splits = {entry.name: _SPLIT_NAMES.get(entry.name.lower()) for entry in folders}
    if "train" in splits.values() and None not in splits.values():
        classes = [(inner, splits[outer.name]) for outer in folders for inner in _entries(outer.path)]
        classes = [(entry, split) for entry, split in classes if _is_folder(entry)]
    else:
        classes = [(entry, None) for entry in folders]
    if not classes:
        raise UserError(f"{root} has no sub-folders: put the images of each class into one, named after the class")
    # What a class has itself is read before what any class links to, which could be the folder of another class.
    seen = {str(root)}
    below: list[list[str]] = [[] for _ in classes]
    links = [[entry.path] if entry.is_symlink() else [] for entry, _ in classes]
    for number, (entry, _) in enumerate(classes):
        if not entry.is_symlink():
            below[number] += _real_files(entry.path, seen, links[number])
    for found, waiting in zip(below, links, strict=True):
        while waiting:
            found += _real_files(waiting.pop(0), seen, waiting)
    files, others, empty = [], 0, []
    for (entry, split), paths in zip(classes, below, strict=True):
        found = [path for path in paths if is_image(path)]
        files += [Labelled(path[len(str(root)) + 1 :], entry.name, split) for path in found]
        others += len(paths) - len(found)
        if not found:
            empty.append(entry.name)
    return Listing(root, tuple(files), others, tuple(empty))


def _from_csv(path: Path) -> Listing:
    try:
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a table in UTF-8: {error}") from None
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    lines = text.splitlines()
    rows = [[cell.strip() for cell in row] for row in _rows(path, lines, delimiter) if any(row)]
    if not rows or len(rows[0]) < 2:
        raise UserError(f"{path} needs a column of paths and one of labels")
    header = [cell.lower() for cell in rows[0]]
    where, what, split = (_column(header, names) for names in (_PATH_COLUMNS, _LABEL_COLUMNS, _SPLIT_COLUMNS))
    if where is not None and what is not None:
        rows = rows[1:]
    elif is_image(rows[0][0]):
        where, what, split = 0, 1, None
    else:
        raise UserError(f"{path} needs the columns 'path' and 'label' (and 'split', if you like), not {rows[0]}")
    files = [_row(path, number, row, where, what, split) for number, row in enumerate(rows, 1)]
    repeated = [file for file, count in Counter(file.path for file in files).items() if count > 1]
    if repeated:
        raise UserError(f"{path} names {repeated[0]} more than once: an image has one label here")
    return Listing(path.parent, tuple(files))


def _rows(path: Path, lines: list[str], delimiter: str) -> Iterator[list[str]]:
    """A row for each line: one that goes on in the next has a quote that nobody closes."""
    table, line = csv.reader(lines, delimiter=delimiter), 0
    try:
        for row in table:
            if table.line_num > line + 1:
                raise UserError(f"{path}: line {line + 1} is not a row of a table: its quote is not closed")
            line = table.line_num
            yield row
    except csv.Error as error:
        raise UserError(f"{path}: line {line + 1} is not a row of a table: {error}") from None


def _row(path: Path, number: int, row: list[str], where: int, what: int, split: int | None) -> Labelled:
    if max(where, what) >= len(row) or not row[where] or not row[what]:
        raise UserError(f"{path}: row {number} lacks its path or its label")
    if split is None or split >= len(row) or not row[split]:
        return Labelled(row[where], row[what])
    if row[split].lower() not in _SPLIT_NAMES:
        raise UserError(f"{path}: row {number} has the split '{row[split]}'; there are {', '.join(SPLITS)}")
    return Labelled(row[where], row[what], _SPLIT_NAMES[row[split].lower()])


def _column(header: list[str], names: Iterable[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            seen = [entry for entry in entries if not entry.name.startswith((".", "__"))]
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}") from None
    return sorted(seen, key=lambda entry: natural(entry.name))
