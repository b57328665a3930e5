"""The page that explains a network's answer to an image, in the style of the report."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.analysis.answers import NONE_OF_THESE
from torchcaps.analysis.explain import ClassView, Explanation
from torchcaps.analysis.neighbours import PoseIndex
from torchcaps.analysis.probes import TWEAKS
from torchcaps.viz import figures
from torchcaps.viz.figures.pixels import heated, png, thumbnail
from torchcaps.viz.figures.style import overlaid, rgb
from torchcaps.viz.report.page import Picture, in_both_themes, render

# Nobody reads more bars than this; the others are folded away.
BARS = 12


def explanation_page(
    explanations: Sequence[Explanation],
    classes: Sequence[str],
    title: str,
    numbers: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    index: PoseIndex | None = None,
) -> str:
    """All explanations on one page, `numbers` at its end; `notes` say what could not be shown."""
    filters = {
        "name": classes.__getitem__,
        "png": lambda picture: png(rgb(picture)),
        "thumbnail": thumbnail,
        "size": _size,
        "overlay": lambda views: png(overlaid(torch.stack([view.picture for view in views]))),
        "order": _order,
        "heats": _heats,
        "strips": partial(_strips, classes),
    }
    return render(
        "explanation.html",
        filters,
        explanations=explanations,
        names=classes,
        title=title,
        threshold=NONE_OF_THESE,
        shown=BARS,
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


def _size(pixels: Tensor) -> str:
    c, h, w = pixels.shape
    return f"{w}x{h}, {({1: 'grey', 3: 'in colour'}).get(c, f'{c} channels')}"


def _order(one: Explanation) -> list[int]:
    """In the order of the classes; where some are folded away, the longest first."""
    longest = one.lengths.argsort(descending=True, stable=True).tolist()
    return longest if len(longest) > BARS else sorted(longest)


def _heats(one: Explanation) -> list[tuple[int, bytes]]:
    views = [*one.answers, *one.runners_up]
    # Nothing is routed from where nothing is seen, such as outside a window: the scale begins where something is.
    some = torch.cat([view.heat[view.heat > 0] for view in views])
    least, most = (float(some.min()), float(some.max())) if len(some) else (0.0, 0.0)
    return [(view.label, png(heated(one.pixels, view.heat, least, most))) for view in views]


def _strips(classes: Sequence[str], view: ClassView) -> Picture:
    assert view.moved is not None
    about = (
        f"The capsule of “{classes[view.label]}”, decoded while one of its dimensions is changed by the amount above"
        " and all others stay the same. The dimensions with the strongest effect come first."
    )
    drawn = in_both_themes(partial(figures.perturbations, view.moved, TWEAKS))
    return Picture(f"Effect of each dimension of “{classes[view.label]}”", about, drawn)
