"""Figure 4: one dimension of a digit capsule is changed at a time, and the decoder shows its effect.

The paper names dimensions by looking at them: "scale and thickness", "width and translation" ... Here they are named by
what they change. Of each picture are measured

width, height     deviation of the ink across and along, in pixels
slant             how far the ink moves to the left from row to row, in pixels
thickness         ink divided by the length of its edges
right, down       place of the ink's centre, in pixels

and a dimension is named by what it changes most, in standard deviations of that measure over digits of the class, if
that is more than one of them between the two ends of the row.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps import data
from torchcaps.analysis import probes
from torchcaps.core.errors import UserError
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, judged
from torchcaps.viz.figures import perturbations, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure 4"
CUT = dict.fromkeys(("quick", "standard"), "the small network with the weights in the package")
DIGITS = 10
SHOWN = (2, 4, 8)
WIDER = 0.5
SHIFTED = 2.0
"""Variance of a shift by up to two pixels, which training images of MNIST have."""
NAMED = 1.0
"""Standard deviations between the ends of a row that give a dimension a name."""


def _trial() -> Trial:
    return Trial("capsnet", "capsnet-mnist", "mnist", 0, {}, protocols.MNIST)


def plan(study: Study) -> list[Trial]:
    return [_trial()] if study.preset == "paper" else []


def width(pictures: Float[Tensor, "*n h w"]) -> Float[Tensor, "*n"]:
    """The horizontal deviation of the ink, in pixels."""
    return shape_of(pictures)["width"]


def shape_of(pictures: Float[Tensor, "*n h w"]) -> dict[str, Float[Tensor, "*n"]]:
    """What can be measured of a drawn digit."""
    h, w = pictures.shape[-2:]
    y, x = torch.meshgrid(torch.arange(h, dtype=pictures.dtype), torch.arange(w, dtype=pictures.dtype), indexing="ij")
    ink = pictures.sum((-2, -1)).clamp(min=1e-6)

    def mean(values: Tensor) -> Tensor:
        return (pictures * values).sum((-2, -1)) / ink

    right, down = mean(x), mean(y)
    dx, dy = x - right[..., None, None], y - down[..., None, None]
    across, along = mean(dx.square()), mean(dy.square())
    edges = pictures.diff(dim=-1).abs().sum((-2, -1)) + pictures.diff(dim=-2).abs().sum((-2, -1))
    return {
        "width": across.sqrt(),
        "height": along.sqrt(),
        "slant": -mean(dx * dy) / along.clamp(min=1e-6),
        "thickness": ink / edges.clamp(min=1e-6),
        "right": right,
        "down": down,
    }


def names_of(pictures: Float[Tensor, "d s h w"], usual: dict[str, float]) -> list[str]:
    """For each dimension what it changes most from end to end, in deviations of `usual` digits, and in which sense."""
    ends = {name: values[:, -1] - values[:, 0] for name, values in shape_of(pictures).items()}
    effects = torch.stack([ends[name] / usual[name] for name in ends], 1)
    strongest = effects.abs().argmax(1).tolist()
    labels = list(ends)
    return [
        f"{labels[k]} {effects[dim, k]:+.1f}".replace("-", "−") if abs(effects[dim, k]) > NAMED else ""
        for dim, k in enumerate(strongest)
    ]


def run(study: Study) -> list[Verdict]:
    model, weights = study.network(_trial(), "capsnet-mnist-small")
    if not probes.reconstructs(model):
        raise UserError("Figure 4 needs a network with a decoder")
    name = "mnist-mini" if study.preset == "smoke" else "mnist"
    answers = probes.answer(model, test := data.load_test_set(name))
    labels = answers.labels[:, 0]
    first = [int(answers.right[labels[answers.right] == digit][0]) for digit in range(DIGITS)]
    images = probes.pick(test, first).images
    pictures = torch.stack([probes.perturb(model, image, digit) for digit, image in enumerate(images)]).detach()
    names = [names_of(pictures[digit, :, :, 0], _usual(test, labels, digit)) for digit in range(DIGITS)]
    with style():
        for digit in SHOWN:
            study.figure(f"fig4-{digit}", perturbations(pictures[digit], probes.TWEAKS, names[digit]))
    widths = width(pictures[:, :, :, 0])
    effect = widths[:, :, -1] - widths[:, :, 0]

    def measure() -> dict[str, list]:
        change = (pictures - pictures[:, :, len(probes.TWEAKS) // 2, None]).square().flatten(3).mean((2, 3))
        return {"width": effect.abs().amax(1).tolist(), "change": change.mean(0).tolist(), "names": names}

    measured = study.row("dimensions", measure, weights=weights, data=name)
    strongest = sum(measured["width"]) / DIGITS
    widened = sum(value >= WIDER for value in measured["width"]) / DIGITS
    changing = sum(v > max(measured["change"]) / 10 for v in measured["change"]) / len(measured["change"])
    named = [[part.split()[0] for part in digit if part] for digit in measured["names"]]
    kinds = ", ".join(f"{kind} {sum(kind in found for found in named)}" for kind in shape_of(torch.zeros(2, 2)))
    note = f"'almost always' in the paper; the strongest changes it by {strongest:.2f} pixels on average"
    return [
        judged(
            f"digits with a dimension that changes the width by {WIDER} pixels", [widened], None, False, note, limit=0.9
        ),
        judged("dimensions that change the picture by a tenth of the strongest or more", [changing], None, False),
        judged(
            "dimensions that can be named by what they change",
            [sum(map(len, named)) / (DIGITS * pictures.shape[1])],
            None,
            False,
            f"digits of ten that have one for: {kinds}",
        ),
    ]


def _usual(test: data.ScoredSet, labels: Tensor, digit: int) -> dict[str, float]:
    """The deviations of the measures over digits of a class; of places those of training, which shifts them."""
    found = probes.pick(test, (labels == digit).nonzero()[:200, 0]).images[:, 0]
    usual = {name: values.std().item() for name, values in shape_of(found).items()}
    return usual | {name: math.sqrt(usual[name] ** 2 + SHIFTED) for name in ("right", "down")}
