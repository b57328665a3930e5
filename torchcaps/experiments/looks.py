"""Two errors looked at along a training: at what is familiar, and at what is novel."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from torchcaps.training.records import Rows
from torchcaps.viz.figures.style import BLUE, GREY, ORANGE, WIDTH

SMOOTHED = 3
"""An error is the mean of so many neighbouring looks."""


class Look(NamedTuple):
    """Errors at familiar and at novel viewpoints, some way into a training."""

    familiar: float
    novel: float


def novel_at(looks: Sequence[Look], familiar: float) -> float:
    """The error at novel viewpoints when that at familiar ones first came down to `familiar`.

    >>> novel_at([Look(0.5, 0.6), Look(0.3, 0.5), Look(0.1, 0.45)], 0.4)
    0.55
    """
    before = looks[0]
    for look in looks:
        if look.familiar <= familiar:
            way = (before.familiar - familiar) / (before.familiar - look.familiar) if look != before else 0.0
            return round(before.novel + way * (look.novel - before.novel), 6)
        before = look
    raise ValueError(f"the error at familiar viewpoints never came down to {familiar}")


def looks_along(rows: Rows) -> list[Look]:
    """From the accuracies that a probe logged; an error is the mean of neighbouring looks, as few images are asked."""
    looks = [Look(1 - row["familiar"], 1 - row["novel"]) for row in rows if "novel" in row]
    spans = [looks[end - min(SMOOTHED, len(looks)) : end] for end in range(min(SMOOTHED, len(looks)), len(looks) + 1)]
    return [Look(*(sum(column) / len(span) for column in zip(*span, strict=True))) for span in spans]


def curves_of_looks(looks: dict[str, list[list[Look]]], title: str, familiar: str, novel: str) -> Figure:
    """Novel against familiar errors, a line for each training: the lower line is better at what is novel."""
    figure = Figure(figsize=(WIDTH / 1.6, WIDTH / 2), layout="constrained")
    ax = figure.subplots()
    for (kind, seeds), colour in zip(looks.items(), (BLUE, ORANGE, GREY), strict=False):
        for n, one in enumerate(seeds):
            ax.plot(*zip(*one, strict=True), color=colour, linewidth=1, alpha=0.7, label=kind if n == 0 else None)
    ax.set(title=title, xlabel=familiar, ylabel=novel)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    ax.grid(True)
    figure.legend(loc="outside upper left")
    return figure
