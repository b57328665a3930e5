"""The style of all figures, light and dark, and the sheet on which pictures are laid out."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea
from torch import Tensor

Theme = Literal["light", "dark"]
Pixels = Float[np.ndarray, "h w 3"]

# Inches. A phone shows 5.4 of them on 360 pixels, where 9.5 points are 9 pixels high.
WIDTH = 5.4
DPI = 200
SMALL, SMALLER = 9.5, 8.0

BLUE, ORANGE, GREY = "#4a7fb5", "#d98032", "#9aa0a6"
RED, GREEN = (1.0, 0.27, 0.22), (0.16, 0.82, 0.36)

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.5,
    "axes.formatter.useoffset": False,
}


def _theme(ground: str, ink: str, muted: str, faint: str) -> dict[str, Any]:
    return {
        "figure.facecolor": ground,
        "savefig.facecolor": ground,
        "axes.facecolor": ground,
        "text.color": ink,
        "axes.titlecolor": ink,
        "axes.labelcolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "axes.edgecolor": muted,
        "grid.color": faint,
    }


THEMES = {
    "light": _theme("#ffffff", "#1d2126", "#5c636b", "#e7e9eb"),
    "dark": _theme("#14171a", "#e8eaec", "#a3abb3", "#2b3036"),
}


@contextmanager
def style(theme: Theme = "light") -> Iterator[None]:
    """Figures made inside look like ours."""
    with matplotlib.rc_context({**STYLE, **THEMES[theme]}):  # pyright: ignore[reportArgumentType]
        yield


def to_png(figure: Figure) -> bytes:
    """The bytes depend on the figure alone: no date, no version."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()


def shortened(name: str, most: int) -> str:
    """A name of at most so many characters, beginning and end kept; dollar signs may be escaped.

    >>> shortened("Leontopodium nivale", 12)
    'Leontopo…ale'
    """
    plain = name.replace(r"\$", "$")
    end = (most - 1) // 3
    return name if len(plain) <= most else f"{plain[: most - 1 - end]}…{plain[-end:]}".replace("$", r"\$")


def rgb(picture: Float[Tensor, "c h w"]) -> Pixels:
    """Three channels are colours; of one, or of a stereo pair, the first is shown in grey."""
    shown = picture if len(picture) == 3 else picture[:1].expand(3, -1, -1)
    return shown.detach().clamp(0, 1).permute(1, 2, 0).numpy()


def tinted(picture: Float[Tensor, "c h w"], colour: Sequence[float]) -> Pixels:
    return rgb(picture) * np.array(colour, dtype=np.float32)


def overlaid(pictures: Float[Tensor, "k c h w"]) -> Pixels:
    """The first picture in red, the second in green; where both have ink it is yellow, as in Figure 5 of the paper."""
    if len(pictures) == 1:
        return rgb(pictures[0])
    return np.clip(tinted(pictures[0], RED) + tinted(pictures[1], GREEN), 0, 1)


class Sheet:
    """Pictures and words on a page. A unit is the side of a picture, from the upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(WIDTH, WIDTH * height / width))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.set_axis_off()

    @staticmethod
    def line(width: float, size: float = SMALL) -> float:
        """The height of a line of text on a sheet of some width, in its units."""
        return 1.3 * size / 72 * width / WIDTH

    def picture(self, x: float, y: float, pixels: Pixels) -> None:
        height, width = np.array(pixels.shape[:2]) / max(pixels.shape[:2])
        left, top = x + (1 - width) / 2, y + (1 - height) / 2
        extent = (left, left + width, top + height, top)
        self.axes.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto")

    def words(self, x: float, y: float, text: str, size: float = SMALL, **options: Any) -> None:
        """Centred above the point."""
        self.axes.text(x, y, text, **({"size": size, "ha": "center", "va": "bottom", "linespacing": 1.3} | options))

    def coloured_words(self, x: float, y: float, parts: Sequence[tuple[str, Any]], size: float = SMALL) -> None:
        """Like `words`, one line, each part in its own colour (None for the ink's)."""
        areas: list[Artist] = [
            TextArea(text, textprops={"size": size} | ({"color": c} if c else {})) for text, c in parts
        ]
        line = HPacker(children=areas, pad=0, sep=0, align="baseline")
        self.axes.add_artist(AnnotationBbox(line, (x, y), frameon=False, box_alignment=(0.5, 0), pad=0))
