"""Figures made of lines and bars."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from torch import Tensor

from torchcaps.viz.figures.style import BLUE, GREY, ORANGE, SMALL, SMALLER, WIDTH, rgb, shortened

# The margin loss wants capsules of what is there beyond the one, all others below the other (Eq. 4).
MARGINS = (0.1, 0.9)
PRESENT, MISSED = BLUE, ORANGE
# More classes than this cannot be named along an axis; characters of a name there.
NAMED, NAME = 30, 22


def training_curves(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Losses and accuracy over the steps; a value that a row does not have is passed over."""
    wanted = {
        "loss": ("total", "margin"),
        "squared error of the reconstructions": ("reconstruction",),
        "images right": ("train_accuracy", "validation_accuracy"),
    }
    panels = [(title, [name for name in names if _column(rows, name)[1]]) for title, names in wanted.items()]
    panels = [(title, names) for title, names in panels if names]
    figure = Figure(figsize=(WIDTH, 0.35 + 1.45 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (title, columns) in zip(axes, panels, strict=True):
        ax.set_title(title)
        ax.grid(True, axis="y")
        for column, colour in zip(columns, (BLUE, ORANGE), strict=False):
            steps, values = _column(rows, column)
            markers = {"marker": "o", "markersize": 3} if len(steps) < 40 else {}
            ax.plot(steps, values, color=colour, label=column.replace("_accuracy", ""), **markers)
        if len(columns) > 1:
            ax.legend(loc="best", ncols=len(columns))
    for ax in axes[:-1]:
        ax.set_ylim(bottom=0)
    axes[-1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    points = [(float(row["step"]), float(row[name])) for row in rows if row.get(name) not in (None, "")]
    return [step for step, _ in points], [value for _, value in points]


def capsule_lengths(
    images: Float[Tensor, "n c h w"],
    lengths: Float[Tensor, "n j"],
    labels: Int[Tensor, "n k"],
    classes: Sequence[str],
    margins: bool = True,
) -> Figure:
    """Beside each image the length of every class capsule: what is there in colour, what was answered with a dot."""
    count, columns = len(images), 2 if max(map(len, classes)) <= 2 else 1
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, 1.2 * rows + (0.15 if columns == 2 else 0.8)), layout="constrained")
    widths = [1, 1.9] * columns if columns == 2 else [1, 4.5]
    grid = figure.add_gridspec(rows, 2 * columns, width_ratios=widths)
    for n in range(count):
        row, column = divmod(n, columns)
        picture = figure.add_subplot(grid[row, 2 * column])
        picture.imshow(rgb(images[n]), interpolation="nearest")
        picture.set_axis_off()
        ax = figure.add_subplot(grid[row, 2 * column + 1])
        _length_bars(ax, lengths[n], labels[n], margins)
        if len(classes) > NAMED:
            names = [", ".join(shortened(classes[k], NAME) for k in part) for part in _found(lengths[n], labels[n])]
            ax.set_title("label {}, answer {}".format(*names), size=SMALLER)
            ax.set_xticks([])
            continue
        names = [shortened(name, NAME) if columns == 2 or row == rows - 1 else "" for name in classes]
        ax.set_xticks(range(len(classes)), names, size=SMALLER)
        if columns == 1:
            ax.tick_params(axis="x", rotation=45)
    return figure


def _found(lengths: Float[Tensor, "j"], labels: Int[Tensor, "k"]) -> tuple[list[int], list[int]]:
    """The labels, and as many answers."""
    return labels.tolist(), lengths.topk(len(labels)).indices.tolist()


def _length_bars(ax: Axes, lengths: Float[Tensor, "j"], labels: Int[Tensor, "k"], margins: bool) -> None:
    present, answered = _found(lengths, labels)
    colours = [PRESENT if j in present else GREY for j in range(len(lengths))]
    ax.bar(range(len(lengths)), lengths.tolist(), width=0.72, color=colours)
    for j in answered:
        ax.plot(j, min(float(lengths[j]), 1) + 0.09, "o", markersize=3, color=PRESENT if j in present else MISSED)
    for margin in MARGINS if margins else ():
        ax.axhline(margin, linewidth=0.6, linestyle=(0, (2, 3)), color=matplotlib.rcParams["ytick.color"], zorder=0)
    ax.set(ylim=(0, 1.15), yticks=[0, 0.5, 1], yticklabels=["0", "", "1"])
    ax.tick_params(axis="x", length=0, pad=2)


def pair_breakdown(shares: Mapping[str, float]) -> Figure:
    """How often both digits, one or none were found; and the longest two capsules, one by one."""
    figure = Figure(figsize=(WIDTH, 0.15 + 0.31 * len(shares)), layout="constrained")
    ax = figure.add_subplot()
    colours = [PRESENT, GREY, MISSED, PRESENT, PRESENT]
    places = [n + (0.5 if n > 2 else 0.0) for n in range(len(shares))]
    _horizontal_bars(ax, places, list(shares.values()), [f"{share:.1%}" for share in shares.values()], colours)
    ax.set_yticks(places, list(shares))
    ax.set_xlim(0, 1.16)
    return figure


def class_misses(shown: Int[Tensor, "j"], missed: Int[Tensor, "j"], classes: Sequence[str]) -> Figure:
    """The share of each class that was not found."""
    shares = (missed / shown.clamp(min=1)).tolist()
    counts = zip(shares, missed.tolist(), shown.tolist(), strict=True)
    texts = [f"{share:.1%}  ({few:,} of {all_:,})" for share, few, all_ in counts]
    figure = Figure(figsize=(WIDTH, 0.2 + 0.27 * len(classes)), layout="constrained")
    ax = figure.add_subplot()
    _horizontal_bars(ax, range(len(classes)), shares, texts, [MISSED] * len(classes))
    ax.set_yticks(range(len(classes)), classes)
    ax.set_xlim(0, max(*shares, 0.001) * 1.45)
    return figure


def _horizontal_bars(
    ax: Axes, places: Sequence[float], values: Sequence[float], texts: Sequence[str], colours: Sequence[str]
) -> None:
    ax.barh(places, values, height=0.7, color=colours)
    for y, value, text in zip(places, values, texts, strict=True):
        ax.annotate(text, (value, y), (4, 0), textcoords="offset points", va="center", size=SMALL)
    ax.invert_yaxis()
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(left=False)
    ax.set_xticks([])
