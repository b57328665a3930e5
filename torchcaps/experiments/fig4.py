"""Figure 4: one dimension of a digit capsule is changed at a time, and the decoder shows its effect."""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps import data
from torchcaps.analysis import probes
from torchcaps.core.errors import UserError
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, judged
from torchcaps.viz.figures import perturbations, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure 4"
CUT = "the small network with the weights in the package"
DIGITS = 10
WIDER = 0.5


def _trial() -> Trial:
    return Trial("capsnet", "capsnet-mnist", "mnist", 0, {}, protocols.MNIST)


def plan(study: Study) -> list[Trial]:
    return study.pick(quick=[], paper=[_trial()], smoke=[])


def width(pictures: Float[Tensor, "*n h w"]) -> Float[Tensor, "*n"]:
    """The horizontal deviation of the ink, in pixels."""
    x = torch.arange(pictures.shape[-1], dtype=pictures.dtype)
    ink = pictures.sum(-2)
    share = ink / ink.sum(-1, keepdim=True).clamp(min=1e-6)
    mean = (share * x).sum(-1, keepdim=True)
    return (share * (x - mean).square()).sum(-1).sqrt()


def run(study: Study) -> list[Verdict]:
    model, weights = study.network(_trial(), "capsnet-mnist-small")
    if not probes.reconstructs(model):
        raise UserError("Figure 4 needs a network with a decoder")
    name = study.pick(quick="mnist", paper="mnist", smoke="mnist-mini")
    answers = probes.answer(model, test := data.load_test_set(name))
    labels = answers.labels[:, 0]
    first = [int(answers.right[labels[answers.right] == digit][0]) for digit in range(DIGITS)]
    images = probes.pick(test, first).images
    pictures = torch.stack([probes.perturb(model, image, digit) for digit, image in enumerate(images)]).detach()
    with style():
        study.figure("fig4", perturbations(pictures[2], probes.TWEAKS))
    widths = width(pictures[:, :, :, 0])
    effect = widths[:, :, -1] - widths[:, :, 0]

    def measure() -> dict[str, list[float]]:
        change = (pictures - pictures[:, :, len(probes.TWEAKS) // 2, None]).square().flatten(3).mean((2, 3))
        return {"width": effect.abs().amax(1).tolist(), "change": change.mean(0).tolist()}

    measured = study.row("dimensions", measure, weights=weights, data=name)
    strongest = sum(measured["width"]) / DIGITS
    widened = sum(value >= WIDER for value in measured["width"]) / DIGITS
    changing = sum(v > max(measured["change"]) / 10 for v in measured["change"]) / len(measured["change"])
    note = f"'almost always' in the paper; the strongest changes it by {strongest:.2f} pixels on average"
    return [
        judged(
            f"digits with a dimension that changes the width by {WIDER} pixels", [widened], None, False, note, limit=0.9
        ),
        judged("dimensions that change the picture by a tenth of the strongest or more", [changing], None, False),
    ]
