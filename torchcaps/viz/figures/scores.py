"""Confusion matrix and calibration."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.analysis.metrics import Reliability
from torchcaps.viz.figures.charts import MISSED, NAME, NAMED, PRESENT
from torchcaps.viz.figures.style import SMALL, SMALLER, WIDTH, shortened

# In a table of more classes, a cell is too small for a number.
NUMBERED = 12
LISTED = 12
RARE = 0.1
# The share of a label that is shaded fully where nothing worse happens.
FAINT = 0.03
# Of fewer answers a bin's share says little.
FEW = 20


def confusion_matrix(counts: Int[Tensor, "j j"], classes: Sequence[str]) -> Figure:
    """Labels down, answers across, in percent of the label; only mistakes are shaded, because they are few compared
    with the diagonal. Where the cells are too many to be numbered, the most frequent confusions are named below.
    """
    table = counts.numpy()
    shares = table / table.sum(1, keepdims=True).clip(min=1)
    mistakes = np.where(np.eye(len(table), dtype=bool), 0, shares)
    many = len(classes) > NUMBERED
    named = _most_frequent(mistakes) if many else []
    side = WIDTH * (0.6 if len(classes) < 4 else 0.82 if max(map(len, classes)) <= 2 or len(classes) > NAMED else 1.0)
    figure = Figure(figsize=(WIDTH, side + 0.2 * len(named)), layout="constrained")
    grid = figure.add_gridspec(2 if named else 1, 1, height_ratios=[side, 0.2 * len(named)] if named else [1])
    ax = figure.add_subplot(grid[0])
    shades = LinearSegmentedColormap.from_list("mistakes", [matplotlib.rcParams["axes.facecolor"], MISSED])
    ax.imshow(mistakes, cmap=shades, vmin=0, vmax=max(mistakes.max(), FAINT), aspect="auto")
    _name_cells(ax, classes)
    if not many:
        _number_cells(ax, shares)
    if named:
        words = figure.add_subplot(grid[1])
        words.set_axis_off()
        lines = [
            f"{classes[y]} → {classes[x]}   {shares[y, x]:.0%}  ({table[y, x]:,} of {table[y].sum():,})"
            for y, x in named
        ]
        words.text(0, 1, "\n".join(lines), va="top", size=SMALLER, linespacing=1.45, transform=words.transAxes)
    return figure


def _name_cells(ax: Axes, classes: Sequence[str]) -> None:
    short = max(map(len, classes)) <= 2
    if len(classes) <= NAMED:
        classes = [shortened(name, NAME) for name in classes]
        size = SMALL if len(classes) <= NUMBERED else 6.5
        turned = {"rotation": 90, "ha": "center"} if len(classes) > NUMBERED else {"rotation": 45, "ha": "right"}
        ax.set_xticks(range(len(classes)), classes, size=size, **({} if short else turned))
        ax.set_yticks(range(len(classes)), classes, size=size)
    ax.set(xlabel="answer" if len(classes) <= NAMED else "answer, by number", ylabel="label")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    for side in ("bottom", "right"):
        ax.spines[side].set_visible(len(classes) > NUMBERED)


def _number_cells(ax: Axes, shares: np.ndarray) -> None:
    """Percents, to a tenth where mistakes are rare; "·" for what happens but rounds to none."""
    off_diagonal = shares[~np.eye(len(shares), dtype=bool)]
    decimals = 1 if off_diagonal.max(initial=0) < RARE else 0
    muted = matplotlib.rcParams["ytick.color"]
    for y, x in zip(*shares.nonzero(), strict=True):
        look: dict[str, Any] = {"color": muted, "size": SMALLER} if x == y else {"weight": "bold", "size": SMALL}
        percent = f"{100 * shares[y, x]:.{decimals}f}"
        ax.text(x, y, percent if float(percent) else "·", ha="center", va="center", **look)


def _most_frequent(mistakes: np.ndarray) -> list[tuple[int, int]]:
    places = np.argsort(-mistakes, axis=None, kind="stable")[:LISTED]
    found = [(int(place) // len(mistakes), int(place) % len(mistakes)) for place in places]
    return [(y, x) for y, x in found if mistakes[y, x] > 0]


def reliability(bins: Reliability) -> Figure:
    """How often answers of some length are right, against the line on which lengths would be probabilities; below, how
    many answers there are of each length.
    """
    count = len(bins.count)
    filled = bins.count.numpy() > 0
    centres = (np.arange(count) + 0.5) / count
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    muted = matplotlib.rcParams["ytick.color"]
    upper.plot([0, 1], [0, 1], linewidth=0.8, linestyle=(0, (2, 3)), color=muted)
    upper.annotate("a probability", (0.13, 0.13), (0, 5), textcoords="offset points", size=SMALLER, color=muted)
    bars = upper.bar(centres[filled], bins.accuracy.numpy()[filled], width=0.92 / count, color=PRESENT)
    for bar, answers in zip(bars, bins.count.numpy()[filled], strict=True):
        bar.set_alpha(0.35 if answers < FEW else 1)
    upper.plot(bins.length.numpy()[filled], bins.accuracy.numpy()[filled], "o", markersize=3.5, color=MISSED)
    upper.set(ylim=(0, 1.05), xlim=(0, 1), yticks=[0, 0.5, 1], yticklabels=["0", "50 %", "100 %"])
    upper.set_title("answers that are right")
    lower.bar(centres, bins.count.numpy() / max(int(bins.count.sum()), 1), width=0.92 / count, color=muted)
    lower.set(ylim=(0, 1.05), yticks=[0, 1], yticklabels=["0", "100 %"], xlabel="how sure the answer is")
    lower.set_title("share of the answers")
    return figure
