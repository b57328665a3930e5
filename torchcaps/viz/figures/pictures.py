"""Figures made of pictures."""

from collections.abc import Sequence

from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.analysis.probes import Redrawn, effects
from torchcaps.viz.figures.style import GREEN, RED, SMALL, SMALLER, Sheet, overlaid, rgb, shortened, tinted

GAP = 0.12
PER_ROW = 6
# Characters that fit above a picture.
HEADING = 10
# On a light ground the colours of the overlay are too bright to read.
RED_INK, GREEN_INK = "#d8392c", "#1f9d4d"


def _width(columns: int, left: float = 0.0) -> float:
    return left + columns + (columns - 1) * GAP


def _blocks(count: int, height: float, left: float = 0.0) -> tuple[Sheet, list[tuple[float, float]]]:
    """A sheet for blocks of that height, as many in a row as fit, and the corner of each."""
    places = [(left + n % PER_ROW * (1 + GAP), n // PER_ROW * height) for n in range(count)]
    return Sheet(_width(PER_ROW, left), -(-count // PER_ROW) * height), places


def segmentations(items: Sequence[Redrawn], classes: Sequence[str]) -> Figure:
    """Figure 5: the input above, its two reconstructions below in red and green.

    R are the digits that were decoded, L the labels; R:P a wrong prediction, * a digit that is neither.
    """
    line = Sheet.line(_width(PER_ROW))
    sheet, places = _blocks(len(items), 2 * line + 2 + GAP + 0.2)
    for item, (x, y) in zip(items, places, strict=True):
        absent = any(k not in item.labels and k not in item.predicted for k in item.decoded)
        mispredicted = set(item.decoded) == set(item.predicted) != set(item.labels)
        first, second = (classes[k] for k in item.decoded)
        prefix = "*R:(" if absent else "R:P:(" if mispredicted else "R:("
        parts = [(prefix, None), (first, RED_INK), (",", None), (second, GREEN_INK), (")", None)]
        sheet.coloured_words(x + 0.5, y + line, parts)
        sheet.words(x + 0.5, y + 2 * line, f"L:({','.join(classes[k] for k in item.labels)})")
        sheet.picture(x, y + 2 * line + 0.05, rgb(item.image))
        sheet.picture(x, y + 2 * line + 1.05 + GAP / 2, overlaid(item.pictures))
    return sheet.figure


def reconstructions(items: Sequence[Redrawn], classes: Sequence[str]) -> Figure:
    """Figure 3: the input above, the reconstruction below, headed by label, prediction and the class decoded."""
    short = max(map(len, classes)) <= 2
    lines = (1 if short else 3) * Sheet.line(_width(PER_ROW), SMALL if short else SMALLER)
    sheet, places = _blocks(len(items), lines + 2 + GAP + 0.2)
    for item, (x, y) in zip(items, places, strict=True):
        names = [shortened(classes[k[0]], HEADING) for k in (item.labels, item.predicted, item.decoded)]
        text = f"({', '.join(names)})" if short else "\n".join(names)
        sheet.words(x + 0.5, y + lines, text, SMALL if short else SMALLER)
        sheet.picture(x, y + lines + 0.05, rgb(item.image))
        sheet.picture(x, y + lines + 1.05 + GAP / 2, rgb(item.pictures[0]))
    return sheet.figure


def separations(
    images: Float[Tensor, "n c h w"],
    targets: Float[Tensor, "n 2 c h w"],
    pictures: Float[Tensor, "n 2 c h w"],
) -> Figure:
    """What the network saw, and beside each digit that went into it the one that its capsule redraws."""
    width = 5 + 2 * GAP + 2 * 0.3
    line = Sheet.line(width)
    sheet = Sheet(width, line + 0.05 + len(images) * (1 + GAP))
    places = (0, 1.3, 2.3 + GAP, 3.6 + GAP, 4.6 + 2 * GAP)
    for x, text in zip(places, ("input", "digit a", "capsule a", "digit b", "capsule b"), strict=True):
        sheet.words(x + 0.5, line, text)
    for n, (image, sources, redrawn) in enumerate(zip(images, targets, pictures, strict=True)):
        y = line + 0.05 + n * (1 + GAP)
        cells = (
            rgb(image), rgb(sources[0]), tinted(redrawn[0], RED), rgb(sources[1]), tinted(redrawn[1], GREEN)
        )  # fmt: skip
        for x, pixels in zip(places, cells, strict=True):
            sheet.picture(x, y, pixels)
    return sheet.figure


def example_pairs(
    images: Float[Tensor, "n c h w"],
    targets: Float[Tensor, "n 2 c h w"],
    labels: Int[Tensor, "n 2"],
    classes: Sequence[str],
) -> Figure:
    """Composites above the two digits they were made of, headed by their labels."""
    left = 0.95
    width = _width(len(images), left)
    line = Sheet.line(width)
    sheet = Sheet(width, line + 3.05 + 2 * GAP)
    for row, text in enumerate(("input", "digit a", "digit b")):
        sheet.words(left - 0.1, line + 0.55 + row * (1 + GAP), text, ha="right", va="center")
    for n, (image, sources, pair) in enumerate(zip(images, targets, labels, strict=True)):
        x = left + n * (1 + GAP)
        sheet.words(x + 0.5, line, " + ".join(classes[int(k)] for k in pair))
        for row, picture in enumerate((image, *sources)):
            sheet.picture(x, line + 0.05 + row * (1 + GAP), rgb(picture))
    return sheet.figure


def titled_rows(rows: Sequence[tuple[str, Float[Tensor, "_ _ _ _"]]]) -> Figure:
    """Pictures in rows, each with a title on its left, such as the same images spoilt in several ways."""
    left = 3.1
    sheet = Sheet(_width(max(len(pictures) for _, pictures in rows), left), len(rows) * (1 + GAP) - GAP)
    for row, (title, pictures) in enumerate(rows):
        sheet.words(0, row * (1 + GAP) + 0.5, title, SMALLER, ha="left", va="center")
        for n, picture in enumerate(pictures):
            sheet.picture(left + n * (1 + GAP), row * (1 + GAP), rgb(picture))
    return sheet.figure


def perturbations(
    pictures: Float[Tensor, "d s c h w"], tweaks: Sequence[float], names: Sequence[str] | None = None
) -> Figure:
    """Figure 4: a row for each dimension of a capsule, from left to right as it is moved; the strongest first.

    `names` say what the dimensions stand for.
    """
    dims, steps = pictures.shape[:2]
    left, gap = 1.3 if names is None else 4.0, 0.06
    width = left + steps + (steps - 1) * gap
    line = Sheet.line(width, SMALLER)
    sheet = Sheet(width, line + 0.1 + dims * (1 + gap))
    for s, tweak in enumerate(tweaks):
        sheet.words(left + s * (1 + gap) + 0.5, line, f"{tweak:+.2f}".replace("-", "−") if tweak else "0", SMALLER)
    for row, dim in enumerate(effects(pictures).argsort(descending=True).tolist()):
        y = line + 0.1 + row * (1 + gap)
        named = f" {names[dim]}" if names and names[dim] else ""
        sheet.words(left - 0.15, y + 0.5, f"dim {dim + 1}{named}", SMALLER, ha="right", va="center")
        for s in range(steps):
            sheet.picture(left + s * (1 + gap), y, rgb(pictures[dim, s]))
    return sheet.figure


def mistakes(
    images: Float[Tensor, "n c h w"],
    labels: Sequence[str],
    predicted: Sequence[str],
    from_label: Float[Tensor, "n c h w"] | None = None,
    from_prediction: Float[Tensor, "n c h w"] | None = None,
) -> Figure:
    """Inputs headed by label and prediction; below, what either capsule makes of them, where there is a decoder."""
    rows = [("input", images), ("as label", from_label), ("as answer", from_prediction)]
    rows = [(name, pictures) for name, pictures in rows if pictures is not None]
    left = 1.05 if len(rows) > 1 else 0.0
    long = max(map(len, (*labels, *predicted))) > 3
    lines = (2 if long else 1) * Sheet.line(_width(PER_ROW, left), SMALLER if long else SMALL)
    sheet, places = _blocks(len(images), lines + len(rows) * (1 + GAP / 2) + 0.25, left)
    for n, (x, y) in enumerate(places):
        text = f"{shortened(labels[n], HEADING)}{chr(10) if long else ' '}→ {shortened(predicted[n], HEADING - 2)}"
        sheet.words(x + 0.5, y + lines, text, SMALLER if long else SMALL)
        for row, (name, pictures) in enumerate(rows):
            top = y + lines + 0.05 + row * (1 + GAP / 2)
            sheet.picture(x, top, rgb(pictures[n]))
            if n % PER_ROW == 0 and left:
                sheet.words(left - 0.12, top + 0.5, name, SMALLER, ha="right", va="center")
    return sheet.figure
