"""The page that explains a network's answer to an image, in the style of the report."""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.analysis.answers import NONE_OF_THESE
from torchcaps.analysis.explain import ClassView, Explanation
from torchcaps.analysis.neighbours import PoseIndex
from torchcaps.analysis.probes import TWEAKS
from torchcaps.viz import figures
from torchcaps.viz.figures.pixels import heated, png, thumbnail
from torchcaps.viz.figures.style import Theme, overlaid, rgb
from torchcaps.viz.report.page import Picture, data_uri, document, figure, folded

# More bars than this are more than anybody reads; the rest is folded away.
BARS = 12
THEMES: tuple[Theme, ...] = ("light", "dark")


def explanation_page(
    explanations: Sequence[Explanation],
    classes: Sequence[str],
    title: str,
    numbers: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    index: PoseIndex | None = None,
) -> str:
    """All explanations on one page, `numbers` at its end; `notes` say what could not be shown."""
    sample = 0 if index is None else len(index)
    body = [_article(one, classes, title, sample) for one in explanations]
    body += [f'<p class="about">{escape(note)}</p>\n' for note in notes]
    text = json.dumps(list(numbers), indent=2, ensure_ascii=False)
    body.append(folded("The numbers", f"<pre><code>{escape(text)}</code></pre>"))
    names = ", ".join(one.name for one in explanations)
    return document(f"{names}, explained by {title}", body)


def page_names(images: Sequence[str]) -> list[Path]:
    """A page for each image, in the folder one is in; images of the same name are told apart by a number.

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


def _article(one: Explanation, classes: Sequence[str], title: str, sample: int) -> str:
    parts = [_header(one, classes, title), _seen(one, classes), _bars(one, classes), _heat(one, classes)]
    for view in one.answers:
        parts += _moved(view, classes)
        parts += _neighbours(view, classes, sample)
    return f"<article>\n{''.join(parts)}</article>\n"


def _header(one: Explanation, classes: Sequence[str], title: str) -> str:
    named = [classes[label] for label in one.found]
    answer = " and ".join(named) or "none of these"
    size = " long" if len(answer) > 4 else ""
    lengths = " and ".join(f"{view.length:.2f}" for view in one.answers)
    several = len(one.answers) > 1
    short = len(named) < len(one.answers)
    lead = f"The longest class capsule{'s have lengths' if several else ' has length'} {lengths}"
    lead += f"; below {NONE_OF_THESE} a capsule does not count." if short else "."
    if one.runners_up:
        next_ = one.runners_up[0]
        lead += f" The next is “{classes[next_.label]}” with {next_.length:.2f}."
    return f"""<header>
<h1>{escape(one.name)}, as {escape(title)} sees it</h1>
<p class="headline{size}">{escape(answer)}</p>
<p class="lead">{escape(lead)} A length says how sure the network is; it is no probability.</p>
</header>
"""


def _seen(one: Explanation, classes: Sequence[str]) -> str:
    c, h, w = one.pixels.shape
    channels = {1: "grey", 3: "in colour"}.get(c, f"{c} channels")
    cells = [
        _cell(thumbnail(one.original), "the picture", pixelated=max(one.original.size) <= 64),
        _cell(png(rgb(one.pixels)), f"as it is given: {w}x{h}, {channels}"),
    ]
    drawn = [(classes[view.label], view.picture) for view in one.answers if view.picture is not None]
    about = "The picture as it came and as it goes into the network."
    if drawn:
        cells += [_cell(png(rgb(picture)), f"“{name}”, redrawn") for name, picture in drawn]
        about = "The picture as it came, as it goes into the network, and what the decoder redraws of the answer alone."
    if len(drawn) == 2:
        (first, red), (second, green) = drawn
        cells.append(_cell(png(overlaid(torch.stack([red, green]))), f"“{first}” in red, “{second}” in green"))
    return _section("What it sees", _grid(cells), about)


def _bars(one: Explanation, classes: Sequence[str]) -> str:
    answers = [view.label for view in one.answers]
    lengths = one.lengths.tolist()
    order = list(range(len(classes)))
    if len(classes) > BARS:
        order.sort(key=lambda j: -lengths[j])
    rows = [
        f'<div class="bar{" answer" if j in answers else ""}"><dt>{escape(classes[j])}</dt>'
        f'<dd><span style="width: {min(max(lengths[j], 0.0), 1.0):.1%}"></span></dd><dd>{lengths[j]:.2f}</dd></div>\n'
        for j in order
    ]
    width = min(max(map(len, classes)), 15)
    first, rest = (
        f'<dl class="bars" style="--name: {width}ch">\n{"".join(part)}</dl>\n' for part in (rows[:BARS], rows[BARS:])
    )
    shown = first + (folded(f"{len(rows) - BARS} more classes", rest) if rows[BARS:] else "")
    about = "The length of every class capsule, from 0 to 1" + ("; the longest first." if len(classes) > BARS else ".")
    return _section("How sure it is", shown, about)


def _heat(one: Explanation, classes: Sequence[str]) -> str:
    views = [*one.answers, *one.runners_up]
    # Nothing is routed from where nothing is seen, such as outside a window: the scale begins where something is.
    some = torch.cat([view.heat[view.heat > 0] for view in views])
    least, most = (float(some.min()), float(some.max())) if len(some) else (0.0, 0.0)
    cells = [
        _cell(png(heated(one.pixels, view.heat, least, most)), f"to “{classes[view.label]}”", pixelated=False)
        for view in views
    ]
    about = (
        "How much of what the primary capsules found was routed to a class, over the part of the image that they see:"
        " coupling in the last iteration times activation, averaged over the capsules that see a pixel. Dark is the"
        f" least, bright the most, on one scale for {'both' if len(views) == 2 else 'all'}. It shows what was sent"
        " where, not what would happen without it."
    )
    return _section("Where it comes from", _grid(cells), about)


def _moved(view: ClassView, classes: Sequence[str]) -> Iterator[str]:
    if view.moved is None:
        return
    about = (
        f"The capsule of “{classes[view.label]}”, decoded while one of its dimensions is moved by the amount above and"
        " all others stay. Strongest first."
    )
    yield figure(Picture(f"What moving “{classes[view.label]}” does", about, _strips(view.moved)))


def _strips(moved: Float[Tensor, "d s c h w"]) -> dict[str, bytes]:
    drawn = {}
    for theme in THEMES:
        with figures.style(theme):
            drawn[theme] = figures.to_png(figures.perturbations(moved, TWEAKS))
    return drawn


def _neighbours(view: ClassView, classes: Sequence[str], sample: int) -> Iterator[str]:
    if view.neighbours is None:
        return
    cells = [
        _cell(png(rgb(near.picture)), f"{' + '.join(classes[k] for k in near.labels)}, {near.distance:.2f}")
        for near in view.neighbours
    ]
    name = classes[view.label]
    about = (
        f"Training images of “{name}” whose capsule of that class has the nearest pose, and its distance; the nearest"
        f" of a sample of {sample:,} training images."
    )
    nothing = f"<p>There is no “{escape(name)}” in the sample.</p>\n"
    yield _section(f"“{name}” that look alike to it", _grid(cells, small=True) if cells else nothing, about)


def _cell(content: bytes, caption: str, pixelated: bool = True) -> str:
    look = ' class="pixels"' if pixelated else ""
    return (
        f'<figure><img{look} alt="{escape(caption)}" src="{data_uri(content)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>\n"
    )


def _grid(cells: Sequence[str], small: bool = False) -> str:
    return f'<div class="cells{" small" if small else ""}">\n{"".join(cells)}</div>\n'


def _section(title: str, content: str, about: str) -> str:
    return f'<section>\n<h2>{escape(title)}</h2>\n{content}<p class="about">{escape(about)}</p>\n</section>\n'
