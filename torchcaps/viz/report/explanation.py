"""The page that explains a network's answer to an image, in the style of the report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchcaps.analysis.answers import NONE_OF_THESE
from torchcaps.analysis.explain import ClassView, Explanation
from torchcaps.analysis.neighbours import PoseIndex
from torchcaps.analysis.probes import TWEAKS
from torchcaps.viz import figures
from torchcaps.viz.figures.pixels import heated, png, thumbnail
from torchcaps.viz.figures.style import Theme, overlaid, rgb
from torchcaps.viz.report.page import Picture, render

# Nobody reads more bars than this; the others are folded away.
BARS = 12
NAME = 22
"""Characters of a class's name beside its bar; a longer name is broken into lines."""
THEMES: tuple[Theme, ...] = ("light", "dark")


class Cell(NamedTuple):
    content: bytes
    caption: str
    pixelated: bool = True


class Bar(NamedTuple):
    name: str
    length: float
    is_answer: bool


def explanation_page(
    explanations: Sequence[Explanation],
    classes: Sequence[str],
    title: str,
    numbers: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    index: PoseIndex | None = None,
) -> str:
    """All explanations on one page, `numbers` at its end; `notes` say what could not be shown."""
    return render(
        "explanation.html",
        articles=[_article(one, classes) for one in explanations],
        names=", ".join(one.name for one in explanations),
        classes=classes,
        title=title,
        threshold=NONE_OF_THESE,
        shown=BARS,
        hidden=any(one.hidden for one in explanations),
        sample=0 if index is None else len(index),
        notes=notes,
        numbers=json.dumps(list(numbers), indent=2, ensure_ascii=False),
    )


def page_names(images: Sequence[str]) -> list[Path]:
    """A page for each image, in the working directory; images of the same name are told apart by a number.

    >>> [str(path) for path in page_names(["a/7.png", "b/7.jpg", "2.png"])]
    ['7-explained.html', '7-explained-2.html', '2-explained.html']
    """
    names: list[Path] = []
    for image in images:
        stem, number = f"{Path(image).stem}-explained", 1
        while (path := Path(f"{stem}-{number}.html" if number > 1 else f"{stem}.html")) in names:
            number += 1
        names.append(path)
    return names


def _article(one: Explanation, classes: Sequence[str]) -> dict[str, Any]:
    return {
        "one": one,
        "answer": " and ".join(classes[label] for label in one.found) or "none of these",
        "seen": _seen(one, classes),
        "bars": _bars(one, classes),
        "width": min(max(map(len, classes)), NAME),
        "heat": _heat(one, classes),
        "views": [{"view": view, "moved": _moved(view, classes), "near": _near(view, classes)} for view in one.answers],
    }


def _seen(one: Explanation, classes: Sequence[str]) -> list[Cell]:
    c, h, w = one.pixels.shape
    channels = {1: "grey", 3: "in colour"}.get(c, f"{c} channels")
    cells = [
        Cell(thumbnail(one.original), "picture file", pixelated=max(one.original.size) <= 64),
        Cell(png(rgb(one.pixels)), f"network input: {w}x{h}, {channels}"),
    ]
    drawn = [(classes[view.label], view.picture) for view in one.answers if view.picture is not None]
    cells += [Cell(png(rgb(picture)), f"“{name}”, redrawn") for name, picture in drawn]
    if len(drawn) == 2:
        (first, red), (second, green) = drawn
        cells.append(Cell(png(overlaid(torch.stack([red, green]))), f"“{first}” in red, “{second}” in green"))
    return cells


def _bars(one: Explanation, classes: Sequence[str]) -> list[Bar]:
    """In the order of the classes; where some are folded away, the longest first."""
    answers = [view.label for view in one.answers]
    bars = [Bar(name, float(one.lengths[j]), j in answers) for j, name in enumerate(classes)]
    return sorted(bars, key=lambda bar: -bar.length) if len(bars) > BARS else bars


def _heat(one: Explanation, classes: Sequence[str]) -> list[Cell]:
    views = [*one.answers, *one.runners_up]
    # Nothing is routed from where nothing is seen, such as outside a window: the scale begins where something is.
    some = torch.cat([view.heat[view.heat > 0] for view in views])
    least, most = (float(some.min()), float(some.max())) if len(some) else (0.0, 0.0)
    return [
        Cell(png(heated(one.pixels, view.heat, least, most)), f"to “{classes[view.label]}”", pixelated=False)
        for view in views
    ]


def _moved(view: ClassView, classes: Sequence[str]) -> Picture | None:
    if view.moved is None:
        return None
    about = (
        f"The capsule of “{classes[view.label]}”, decoded while one of its dimensions is changed by the amount above"
        " and all others stay the same. The dimensions with the strongest effect come first."
    )
    drawn = {}
    for theme in THEMES:
        with figures.style(theme):
            drawn[theme] = figures.to_png(figures.perturbations(view.moved, TWEAKS))
    return Picture(f"Effect of each dimension of “{classes[view.label]}”", about, drawn)


def _near(view: ClassView, classes: Sequence[str]) -> list[Cell] | None:
    if view.neighbours is None:
        return None
    return [
        Cell(png(rgb(near.picture)), f"{' + '.join(classes[k] for k in near.labels)}, {near.distance:.2f}")
        for near in view.neighbours
    ]
