"""Classify picture files: one, a folder of them, or a stream of paths, in batches and in their order."""

import csv
import io
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.analysis.answers import Row, answer, label_text
from torchcaps.core.errors import UserError
from torchcaps.core.text import printable
from torchcaps.data.folder.decode import decoded
from torchcaps.data.folder.listing import files_below, is_image
from torchcaps.models.config import Model

BATCH = 64


def predict(
    model: Model, classes: tuple[str, ...], batches: Iterable[list[str]], handwritten: bool = False
) -> Iterator[Row | UserError]:
    """For each file its `image`, `label`, `confidence` and `lengths`, or why it cannot be read.

    A confidence is the length of the capsule that the label stands for (of the shorter one of two). `handwritten`
    prepares pictures as MNIST was.
    """
    device = next(model.parameters()).device
    for paths in batches:
        pictures = list(decoded(paths, model.config.image, handwritten, ahead=BATCH))
        readable = [picture for picture in pictures if not isinstance(picture, UserError)]
        answers: Iterator[torch.Tensor] = iter(())
        if readable:
            with torch.no_grad():
                pixels = torch.from_numpy(np.stack(readable).astype(np.float32) / 255)
                answers = iter(model(pixels.to(device)).lengths.cpu())
        for path, picture in zip(paths, pictures, strict=True):
            bad = isinstance(picture, UserError)
            yield picture if bad else answer(path, next(answers), classes, model.config.objects)


def batches_of(arguments: list[str]) -> Iterator[list[str]]:
    """The files that are meant by files, folders (with all below) and `-` (a path in each line of standard input)."""
    plain = chain.from_iterable(_files(argument) for argument in arguments if argument != "-")
    while paths := list(islice(plain, BATCH)):
        yield paths
    if "-" in arguments:
        yield from as_they_come(sys.stdin, BATCH)


def _files(argument: str) -> Iterator[str]:
    if not Path(argument).is_dir():
        yield argument
        return
    found = (path for path in files_below(argument) if is_image(path))
    first = next(found, None)
    if first is None:
        raise UserError(f"{argument} has no images in it")
    yield from chain([first], found)


def as_they_come(lines: Iterable[str], most: int) -> Iterator[list[str]]:
    """Lines in lists of those that are waiting, so that the first is answered at once and a rush in batches."""
    waiting: queue.Queue[str | None] = queue.Queue(4 * most)

    def read() -> None:
        try:
            for line in lines:
                if path := line.rstrip("\r\n"):
                    waiting.put(path)
        finally:
            waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (path := waiting.get()) is not None:
        paths = [path]
        while len(paths) < most and not waiting.empty():
            path = waiting.get()
            if path is None:
                yield paths
                return
            paths.append(path)
        yield paths


def _table(rows: Iterable[Row], classes: tuple[str, ...]) -> Iterator[str]:
    width = max(len(printable(name)) for name in (*classes, "none of these"))
    for number, row in enumerate(rows):
        if number == 0:
            yield f"{'label':<{width}}  length  image\n"
        yield f"{printable(label_text(row)):<{width}}  {row['confidence']:6.1%}  {printable(row['image'])}\n"


def _json(rows: Iterable[Row], classes: tuple[str, ...]) -> Iterator[str]:
    """A list, one row a line, so that it can be read while it grows."""
    before = "[\n"
    for row in rows:
        yield before + json.dumps(row)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _csv(rows: Iterable[Row], classes: tuple[str, ...]) -> Iterator[str]:
    """Names as they are, for a program to read; escaped where a terminal would show them."""
    shown = printable if sys.stdout.isatty() else str
    for number, row in enumerate(rows):
        if number == 0:
            yield _csv_line(["image", "label", "confidence", *map(shown, classes)])
        yield _csv_line([shown(row["image"]), shown(label_text(row)), row["confidence"], *row["lengths"].values()])


def _csv_line(cells: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


FORMATS: dict[str, Callable[[Iterable[Row], tuple[str, ...]], Iterator[str]]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
}
"""Answers to text, piece by piece as they come."""
