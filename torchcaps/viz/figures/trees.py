"""The parse tree: which parent each active capsule is coupled to most."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.viz.figures.style import BLUE, GREY, ORANGE, SMALLER, WIDTH, rgb

PER_ROW = 3


class Tree(NamedTuple):
    """An image, how active each child of the grid is, its couplings to the parents, and the parents' lengths."""

    image: Float[Tensor, "c h w"]
    activations: Float[Tensor, "t y x"]
    couplings: Float[Tensor, "t y x j"]
    lengths: Float[Tensor, "j"]


def parse_trees(trees: Sequence[Tree], classes: Sequence[str], active: float) -> Figure:
    """Above the parents, sized by length; below the image with its active children, each tied to the parent it chose.

    A line is as strong as the coupling; children have the colour of the parent they chose, grey if it is not active.
    """
    rows = -(-len(trees) // PER_ROW)
    figure = Figure(figsize=(WIDTH, WIDTH / PER_ROW * 1.62 * rows), layout="constrained")
    for n, tree in enumerate(trees):
        _draw(figure.add_subplot(rows, PER_ROW, n + 1), tree, classes, active)
    return figure


def _draw(ax: Axes, tree: Tree, classes: Sequence[str], active: float) -> None:
    types, height, width = tree.activations.shape
    found = [j for j in tree.lengths.argsort(descending=True).tolist() if tree.lengths[j] >= active]
    colours = dict.fromkeys(range(len(classes)), GREY) | dict(zip(found, (BLUE, ORANGE), strict=False))
    ax.imshow(0.5 * rgb(tree.image), extent=(0, 1, 1, 0), interpolation="nearest", aspect="auto")
    places = {j: ((n + 0.5) / len(classes), -0.42) for n, j in enumerate(range(len(classes)))}
    lines, shades, strengths = [], [], []
    # Capsules of several types at one position stand side by side.
    side = max(2, round(types**0.5 + 0.49))
    for t, y, x in (tree.activations > active).nonzero().tolist():
        here = tree.couplings[t, y, x]
        parent = int(here.argmax())
        px = (x + (t % side + 0.5) / side) / width
        py = (y + (t // side + 0.5) / side) / height
        colour = colours[parent]
        ax.plot(px, py, "o", markersize=2.4, color=colour, markeredgewidth=0)
        lines.append([(px, py), places[parent]])
        shades.append(colour)
        strengths.append(float(here[parent]))
    ax.add_collection(LineCollection(lines, colors=shades, linewidths=0.35, alpha=[0.15 + 0.6 * s for s in strengths]))
    for j, (px, py) in places.items():
        length = float(tree.lengths[j])
        ax.plot(px, py, "o", markersize=2.5 + 8 * length, color=colours[j], markeredgewidth=0)
        ax.text(px, py - 0.12, classes[j], ha="center", va="bottom", size=SMALLER)
    ax.set(xlim=(-0.02, 1.02), ylim=(1.02, -0.72))
    ax.set_axis_off()
