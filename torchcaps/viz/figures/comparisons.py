"""Figures that put several measurements side by side: ours, seed by seed, and the paper's."""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import NamedTuple

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from torchcaps.viz.figures.style import BLUE, GREY, ORANGE, WIDTH

LETTERS = 62
LONGEST = 34
"""Letters of a row's name, or of a panel's, in one line."""
COLOURS = (BLUE, ORANGE, GREY, "#5a9367", "#8a6bb1", "#b5564a", "#3d8f99")


class Measured(NamedTuple):
    """A line of a dot plot: its name, a value for each seed, and the paper's value if there is one."""

    name: str
    values: Sequence[float]
    paper: float | None = None


def dots(groups: Mapping[str, Sequence[Measured]], label: str) -> Figure:
    """A panel for each group: every seed a dot, the mean a stroke, the paper's value a hollow diamond."""
    heights = [len(rows) + 0.8 for rows in groups.values()]
    wrapped = any(len(row.name) > LONGEST for rows in groups.values() for row in rows)
    figure = Figure(figsize=(WIDTH, 0.75 + (0.38 if wrapped else 0.29) * sum(heights)), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (title, rows) in zip(axes, groups.items(), strict=True):
        for y, row in enumerate(rows):
            ax.plot(
                row.values,
                [y] * len(row.values),
                "o",
                color=BLUE,
                markersize=4,
                alpha=0.6,
                markeredgewidth=0,
                clip_on=False,
            )
            mean = sum(row.values) / len(row.values)
            ax.plot([mean, mean], [y - 0.28, y + 0.28], color=BLUE, linewidth=2)
            if row.paper is not None:
                ax.plot(row.paper, y, "D", markersize=5, markerfacecolor="none", color=ORANGE)
        _name_rows(ax, [row.name for row in rows])
        ax.set_title(fill(title, LONGEST))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g} %"))
        values = [v for row in rows for v in (*row.values, *([] if row.paper is None else [row.paper]))]
        low, high = min(values), max(values)
        beyond = 0.08 * (high - low or abs(high))
        near = low > high / 2  # dots need no zero, and small differences between large numbers no room for one
        left, right = (low, high) if near else (min(0.0, low), max(0.0, high))
        left, right = left - (beyond if left else 0.0), right + (beyond if right else 0.0)
        right = min(right, 1.0) if high <= 1 else right  # most are shares, which do not exceed 100 %
        ax.set_xlim(left, right if right > left else 1.0)
    papers = any(row.paper is not None for rows in groups.values() for row in rows)
    # Below the whole figure: long names on the left leave the panels little width.
    legend = f"{label}  (dots: seeds, stroke: their mean{', diamond: the paper' if papers else ''})"
    figure.supxlabel(legend, fontsize=rcParams["axes.labelsize"], color=rcParams["axes.labelcolor"])
    return figure


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    """From the top downwards."""
    ax.set_yticks(range(len(names)), [fill(name, LONGEST) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(True, axis="x")
    ax.tick_params(left=False)


class Interval(NamedTuple):
    """A line of a plot of differences: its name, the mean and the ends of its interval."""

    name: str
    mean: float
    low: float
    high: float


def intervals(rows: Sequence[Interval], label: str) -> Figure:
    """Differences in percentage points with their intervals; blue where the interval does not reach zero."""
    figure = Figure(figsize=(WIDTH, 0.75 + 0.33 * len(rows)), layout="constrained")
    ax = figure.add_subplot()
    known = [100 * abs(end) for row in rows for end in (row.mean, row.low, row.high) if abs(end) < 1]
    reach = 1.15 * max(known, default=1.0) or 1.0
    for y, row in enumerate(rows):
        colour = BLUE if row.low > 0 or row.high < 0 else GREY
        low, high = (max(-reach, min(reach, 100 * end)) for end in (row.low, row.high))
        ax.plot([low, high], [y, y], color=colour, linewidth=2, solid_capstyle="butt")
        ax.plot(100 * row.mean, y, "o", color=colour, markersize=5)
    ax.axvline(0, color=ORANGE, linewidth=1)
    _name_rows(ax, [row.name for row in rows])
    ax.set_xlim(-reach, reach)
    figure.supxlabel(label, fontsize=rcParams["axes.labelsize"], color=rcParams["axes.labelcolor"])
    return figure


class Curve(NamedTuple):
    """Values over `x`, one list for each seed."""

    x: Sequence[float]
    seeds: Sequence[Sequence[float]]


def curves(
    panels: Mapping[str, Mapping[str, Curve]],
    x_label: str,
    percent: bool = False,
    log_x: bool = False,
    log_y: bool | Sequence[bool] = False,
    marks: bool = False,
    share_x: bool = True,
) -> Figure:
    """A panel for each entry, all with the same lines: the mean over the seeds, the least to the greatest shaded."""
    figure = Figure(figsize=(WIDTH, 0.4 + 2.1 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=share_x)[:, 0]
    logs = [log_y] * len(panels) if isinstance(log_y, bool) else log_y
    for ax, (title, lines), log in zip(axes, panels.items(), logs, strict=True):
        for (name, curve), colour in zip(lines.items(), COLOURS * 3, strict=False):
            columns = list(zip(*curve.seeds, strict=True))
            mean = [sum(column) / len(column) for column in columns]
            x = curve.x[: len(mean)]
            ax.plot(x, mean, color=colour, label=name, marker="o" if marks else None, markersize=3.5)
            if len(curve.seeds) > 1:
                low, high = [min(column) for column in columns], [max(column) for column in columns]
                ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        ax.set_title(title)
        ax.grid(True, axis="y")
        if log_x:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
            ax.xaxis.set_minor_formatter(NullFormatter())
            if marks:
                ax.set_xticks(list(next(iter(lines.values())).x))
        if log:
            ax.set_yscale("log")
        if percent:
            ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    names = list(next(iter(panels.values())))
    if len(names) > 1:
        # As many side by side as the width of the figure holds.
        columns = max(1, min(len(names), int(LETTERS / (max(map(len, names)) + 6))))
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=columns)
    axes[-1].set_xlabel(x_label)
    return figure
