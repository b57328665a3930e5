"""Where the votes for each class are after each routing iteration: Figures 2 and B.2 of Hinton et al. 2018."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.viz.figures.style import BLUE, GREY, ORANGE, SMALLER, WIDTH, rgb

BINS = 24
ZOOMED, FULL = 0.5, 1.0
"""Share of the answered class's votes that are shown: the nearest, where votes agree, or all."""


def vote_histograms(
    images: Float[Tensor, "n c h w"],
    distances: Float[Tensor, "r n i j"],
    assignments: Float[Tensor, "r n i j"],
    lengths: Float[Tensor, "n j"],
    labels: Int[Tensor, "n"],
    classes: Sequence[str],
    shown: float = ZOOMED,
) -> Figure:
    """For each image a block: an iteration a row, a class a column, distances weighted by assignment.

    The label's class is in colour, and a wrong answer in another. Votes that agree pile up at the left. The axis ends
    at the distance within which the share `shown` of the votes for the answered class lies at last.
    """
    iterations, count = distances.shape[:2]
    figure = Figure(figsize=(WIDTH, (0.5 * iterations + 0.3) * count + 0.5), layout="constrained")
    part = "all" if shown >= FULL else f"the nearest {shown:.0%} of the answer's votes"
    figure.suptitle(f"distances of votes from the class capsule's mean, {part}", size=SMALLER)
    for n, block in enumerate(figure.subfigures(count, 1, squeeze=False)[:, 0]):
        grid = block.add_gridspec(
            iterations, len(classes) + 1, width_ratios=[1.3 + 0.1 * max(0, len(classes) - 5), *[1] * len(classes)]
        )
        picture = block.add_subplot(grid[:, 0])
        picture.imshow(rgb(images[n, :1]), interpolation="nearest")
        picture.set_axis_off()
        answered, label = int(lengths[n].argmax()), int(labels[n])
        picture.set_title(_caption(classes[label], classes[answered]), size=SMALLER)
        end = float(distances[:, n].max())
        if shown < FULL:
            end = _within(distances[-1, n, :, answered].numpy(), assignments[-1, n, :, answered].numpy(), shown)
        edges = np.linspace(0, end or 1.0, BINS + 1)
        for r in range(iterations):
            heights = [
                np.histogram(distances[r, n, :, j].numpy(), edges, weights=assignments[r, n, :, j].numpy())[0]
                for j in range(len(classes))
            ]
            for j, name in enumerate(classes):
                ax = block.add_subplot(grid[r, j + 1])
                colour = BLUE if j == label else ORANGE if j == answered else GREY
                ax.bar(edges[:-1], heights[j], np.diff(edges), align="edge", color=colour)
                _plain(ax, edges[-1], float(np.max(heights)), r == iterations - 1)
                if r == 0:
                    ax.set_title(f"{name} {lengths[n, j]:.2f}", size=SMALLER)
                if j == 0:
                    ax.set_ylabel(f"after {r + 1}", size=SMALLER)
    return figure


def _within(distances: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The distance below which this share of the weights lies."""
    order = distances.argsort()
    reached = weights[order].cumsum()
    return float(distances[order][np.searchsorted(reached, share * reached[-1])])


def _caption(label: str, answered: str) -> str:
    return label if label == answered else f"{label}\ntaken for\n{answered}"


def _plain(ax: Axes, end: float, highest: float, is_last: bool) -> None:
    """The axes of a row have one scale, so that a class that gets nothing looks so."""
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    ax.set(xlim=(0, end), ylim=(0, highest or 1.0))
    ax.set_xticks([0, end], ["0", f"{end:.1f}"] if is_last else ["", ""], size=SMALLER)
