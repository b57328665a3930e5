"""Figures: what they show, and that nothing sticks out of them."""

import io
import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from torchcaps.analysis import metrics
from torchcaps.analysis.probes import TWEAKS, Redrawn
from torchcaps.data.dataset import DIGITS
from torchcaps.data.named import FASHION
from torchcaps.viz import figures
from torchcaps.viz.figures.style import DPI, THEMES, WIDTH, overlaid, rgb

LARGEST_PNG, LARGEST_GIF = 350_000, 600_000


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def pair(labels: tuple[int, ...], predicted: tuple[int, ...], decoded: tuple[int, ...]) -> Redrawn:
    return Redrawn(noise(1, 36, 36), labels, predicted, decoded, noise(len(decoded), 1, 36, 36))


ROWS = [
    {"step": "50", "total": "0.7", "margin": "0.5", "reconstruction": "80", "train_accuracy": "0.2"},
    {"step": "100", "total": "0.4", "margin": "0.3", "reconstruction": "60", "train_accuracy": "0.6"}
    | {"validation_accuracy": "0.7"},
]

DRAWN: dict[str, Callable[[], Figure]] = {
    "segmentations": lambda: figures.segmentations([pair((2, 7), (7, 2), (2, 7))] * 8, DIGITS),
    "reconstructions": lambda: figures.reconstructions([pair((5,), (3,), (5,))] * 7, DIGITS),
    "reconstructions of clothes": lambda: figures.reconstructions([pair((9,), (2,), (9,))] * 2, FASHION),
    "separations": lambda: figures.separations(noise(3, 1, 36, 36), noise(3, 2, 1, 36, 36), noise(3, 2, 1, 36, 36)),
    "pairs": lambda: figures.example_pairs(
        noise(7, 1, 36, 36), noise(7, 2, 1, 36, 36), torch.arange(14).view(7, 2) % 10, DIGITS
    ),
    "perturbations": lambda: figures.perturbations(0.5 * noise(16, 11, 1, 28, 1).expand(-1, -1, -1, -1, 28), TWEAKS),
    "mistakes": lambda: figures.mistakes(noise(7, 1, 28, 28), list("1234567"), list("7654321")),
    "mistakes redrawn": lambda: figures.mistakes(
        noise(7, 1, 28, 28), list("1234567"), list("7654321"), noise(7, 1, 28, 28), noise(7, 1, 28, 28)
    ),
    "mistakes with clothes": lambda: figures.mistakes(noise(2, 3, 24, 24), list(FASHION[:2]), list(FASHION[8:])),
    "lengths": lambda: figures.capsule_lengths(
        noise(5, 1, 36, 36), noise(5, 10), torch.tensor([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]), DIGITS
    ),
    "lengths of clothes": lambda: figures.capsule_lengths(
        noise(3, 1, 28, 28), noise(3, 10), torch.tensor([[0], [1], [9]]), FASHION, margins=False
    ),
    "titled rows": lambda: figures.titled_rows([("grey", noise(4, 1, 36, 36)), ("in colour", noise(2, 3, 20, 24))]),
    "intervals": lambda: figures.intervals(
        [figures.Interval("a CNN", 0.004, 0.001, 0.007), figures.Interval("one seed", 0.002, -math.inf, math.inf)], "x"
    ),
    "breakdown": lambda: figures.pair_breakdown(
        dict.fromkeys(("both", "one", "none", "first answer is in the image", "second"), 1.0)
    ),
    "misses": lambda: figures.class_misses(torch.full((10,), 1000), torch.arange(10) * 111, FASHION),
    "no misses": lambda: figures.class_misses(torch.full((10,), 1000), torch.zeros(10, dtype=torch.int64), DIGITS),
    "confusion": lambda: figures.confusion_matrix(torch.arange(100).view(10, 10), FASHION),
    **{
        f"confusion of {n}": lambda n=n: figures.confusion_matrix(
            torch.arange(n * n).view(n, n) % 7 + 100 * torch.eye(n, dtype=torch.int64),
            [f"class number {k}" for k in range(n)],
        )
        for n in (2, 12, 13, 30, 100)
    },
    "confusion without mistakes": lambda: figures.confusion_matrix(100 * torch.eye(20, dtype=torch.int64), ["a"] * 20),
    "reliability": lambda: figures.reliability(metrics.reliability(noise(500, 10), torch.arange(500)[:, None] % 10)),
    "curves": lambda: figures.training_curves(ROWS),
}


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]  # pyright: ignore


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_fits_a_phone_and_a_mail(name: str) -> None:
    with figures.style():
        figure = DRAWN[name]()
        png = figures.to_png(figure)
    picture = Image.open(io.BytesIO(png))
    assert picture.width == round(WIDTH * DPI)
    assert len(png) < LARGEST_PNG
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    used, page = figure.get_tightbbox(canvas.get_renderer()), figure.bbox_inches.padded(0.01)
    assert page.contains(used.x0, used.y0), "something sticks out to the left or below"
    assert page.contains(used.x1, used.y1), "something sticks out to the right or above"


@pytest.mark.parametrize("theme", THEMES)
def test_a_figure_has_the_ground_of_its_theme(theme: str) -> None:
    with figures.style(theme):
        picture = Image.open(io.BytesIO(figures.to_png(DRAWN["breakdown"]())))
    assert picture.convert("RGB").getpixel((0, 0)) == tuple(bytes.fromhex(THEMES[theme]["figure.facecolor"][1:]))


def test_the_same_figure_has_the_same_bytes() -> None:
    with figures.style():
        assert figures.to_png(DRAWN["breakdown"]()) == figures.to_png(DRAWN["breakdown"]())


def test_style_leaves_no_trace() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with figures.style("dark"):
        assert matplotlib.rcParams["text.color"] == THEMES["dark"]["text.color"]
    assert dict(matplotlib.rcParams) == before


def test_no_global_figures_are_made() -> None:
    code = "import sys, torchcaps.viz.figures, torchcaps.viz.report; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_overlay_is_red_and_green_and_yellow_where_both_have_ink() -> None:
    pictures = torch.zeros(2, 1, 1, 4)
    pictures[0, 0, 0, [0, 2]] = 1
    pictures[1, 0, 0, [1, 2]] = 1
    red, green, yellow, black = overlaid(pictures)[0]
    assert red[0] > 2 * red[1]
    assert green[1] > 2 * green[0]
    assert yellow[0] == yellow[1] == 1
    assert black.tolist() == [0, 0, 0]


def test_grey_colour_and_stereo_pictures_are_shown() -> None:
    assert np.array_equal(rgb(noise(1, 4, 4))[..., 0], rgb(noise(1, 4, 4))[..., 2])
    colour = noise(3, 4, 4)
    assert np.allclose(rgb(colour).transpose(2, 0, 1), colour)
    stereo = noise(2, 4, 4)
    assert np.allclose(rgb(stereo)[..., 1], stereo[0])


def test_figure_5_says_what_was_decoded() -> None:
    items = [
        pair((2, 7), (7, 2), (2, 7)),
        pair((5, 0), (0, 5), (5, 7)),
        pair((2, 8), (2, 7), (2, 8)),
        pair((2, 8), (2, 7), (2, 7)),
    ]
    captions = "".join(words(figures.segmentations(items, DIGITS)))
    for caption in ("R:(2,7)", "*R:(5,7)", "R:(2,8)", "R:P:(2,7)"):
        assert caption in captions
        captions = captions.replace(caption, "", 1)
    assert [captions.count(f"L:({labels})") for labels in ("2,7", "5,0", "2,8")] == [1, 1, 2]


def test_figure_3_says_label_prediction_and_target() -> None:
    assert words(figures.reconstructions([pair((5,), (3,), (5,)), pair((5,), (3,), (3,))], DIGITS)) == [
        "(5, 3, 5)",
        "(5, 3, 3)",
    ]


def test_the_confusion_matrix_is_in_percent_of_the_label() -> None:
    often = words(figures.confusion_matrix(torch.tensor([[60, 40], [3, 997]]), ("a", "b")))
    assert {"60", "40", "100", "·"} <= set(often)
    rarely = words(figures.confusion_matrix(torch.tensor([[996, 4], [3, 997]]), ("a", "b")))
    assert {"99.6", "0.4", "99.7", "0.3"} <= set(rarely)


def test_many_classes_have_their_worst_confusions_named() -> None:
    counts = 50 * torch.eye(100, dtype=torch.int64)
    counts[3, 7], counts[8, 9] = 50, 10
    (named,) = [text for text in words(figures.confusion_matrix(counts, [f"k{n}" for n in range(100)])) if "→" in text]
    assert [line.split("  ")[0].strip() for line in named.splitlines()] == ["k3 → k7", "k8 → k9"]
    assert "50%" in named


def test_perturbations_come_strongest_first() -> None:
    pictures = torch.zeros(3, 11, 1, 4, 4)
    pictures[1] = torch.linspace(0, 1, 11).view(11, 1, 1, 1)
    pictures[2] = torch.linspace(0, 0.5, 11).view(11, 1, 1, 1)
    shown = [text for text in words(figures.perturbations(pictures, TWEAKS)) if text.startswith("dim")]
    assert shown == ["dim 2", "dim 3", "dim 1"]


def test_curves_skip_what_a_row_does_not_have() -> None:
    figure = figures.training_curves(ROWS)
    points = {line.get_label(): line.get_xydata().tolist() for ax in figure.axes for line in ax.lines}
    assert points["validation"] == [[100, 0.7]]
    assert points["margin"] == [[50, 0.5], [100, 0.3]]
    plain = [{"step": 1, "total": 2.0, "train_accuracy": 0.1}, {"step": 2, "total": 1.0, "train_accuracy": 0.2}]
    assert len(figures.training_curves(plain).axes) == 2


def test_lengths_mark_what_is_there_and_what_was_answered() -> None:
    lengths = torch.tensor([[0.9, 0.1, 0.8, 0.2]])
    figure = figures.capsule_lengths(noise(1, 1, 8, 8), lengths, torch.tensor([[0, 3]]), ("a", "b", "c", "d"))
    bars = figure.axes[1]
    colours = [patch.get_facecolor() for patch in bars.patches]
    assert colours[0] == colours[3] != colours[1] == colours[2]
    dots = sorted(line.get_xdata()[0] for line in bars.lines if line.get_marker() == "o")
    assert dots == [0, 2]


@pytest.mark.parametrize(("digits", "panels"), [(1, 2), (2, 4)])
def test_the_animation_holds_its_end_and_loops(digits: int, panels: int) -> None:
    ramp = torch.linspace(0, 1, 36)
    blob = torch.stack([torch.outer(ramp, ramp), torch.outer(ramp, 1 - ramp)])[:digits, None]
    frames = 0.5 * (1 - torch.linspace(0, 1, 41).view(41, 1, 1, 1, 1)).lerp(blob, 0.5)
    moments = [(n / 40, f"step {n}") for n in range(41)]
    animation = figures.learning_gif(noise(1, 36, 36), frames, moments, ["2", "7"][:digits])
    picture = Image.open(io.BytesIO(animation.gif))
    assert len(animation.gif) < LARGEST_GIF
    assert picture.info["loop"] == 0
    durations = []
    for frame in range(picture.n_frames):
        picture.seek(frame)
        durations.append(picture.info["duration"])
    assert picture.n_frames > 41
    assert max(durations) == durations[40] >= 2000
    picture.seek(40)
    still = Image.open(io.BytesIO(animation.last))
    difference = np.asarray(picture.convert("RGB"), int) - np.asarray(still.convert("RGB"), int)
    assert np.abs(difference).mean() < 4
    assert picture.width // 150 == panels


ANY_SIGN = [(-0.013, -0.0017), (-0.001, 0.013), (0.0, 0.0), (0.2, 0.9), (0.97, 0.98), (-0.2, -0.2)]


@pytest.mark.parametrize("values", ANY_SIGN)
def test_no_dot_lies_outside_of_its_panel(values: tuple[float, ...]) -> None:
    with figures.style():
        (ax,) = figures.dots({"a": [figures.Measured("b", list(values))]}, "error").axes
    left, right = ax.get_xlim()
    assert left <= min(values) <= max(values) <= right
    assert left < right


def test_a_panels_long_name_is_not_cut_off() -> None:
    row = figures.Measured("a network whose name is long", [0.1, 0.2])
    with figures.style():
        figure = figures.dots({"images of the kind that all of these networks were trained on": [row]}, "error")
        FigureCanvasAgg(figure).draw()
        (title,) = (text for text in figure.findobj(Text) if "trained" in text.get_text())
        assert title.get_window_extent().x1 <= figure.bbox.x1
