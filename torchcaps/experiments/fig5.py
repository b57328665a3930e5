"""Figure 5: two digits on top of each other, each redrawn by its own capsule."""

import torch
from torch import nn

from torchcaps import data
from torchcaps.analysis import probes
from torchcaps.analysis.evaluate import evaluate
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, judged
from torchcaps.viz.figures import segmentations, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure 5"
CUT = "the small network with the weights in the package; 10,000 instead of 10 M test pairs"
RIGHT, ABSENT, WRONG = 6, 2, 2


def _trial() -> Trial:
    return Trial("capsnet", "capsnet-multimnist", "multimnist", 0, {}, protocols.MULTIMNIST)


def plan(study: Study) -> list[Trial]:
    return study.pick(quick=[], paper=[_trial()], smoke=[])


def run(study: Study) -> list[Verdict]:
    model, weights = study.network(_trial(), "capsnet-multimnist-small")
    name, pairs = study.pick(quick=("multimnist", 10_000), paper=("multimnist", 10_000), smoke=("multimnist-mini", 200))
    test = data.load_test_set(name, pairs)
    answers = probes.answer(model, test)
    drawn = probes.redraw(model, test, answers, probes.samples(answers, RIGHT, ABSENT, WRONG))
    with style():
        study.figure("fig5", segmentations(drawn, data.resolve(name).classes))
    scores = study.row("test", lambda: evaluate(model, test), weights=weights, data=name, pairs=pairs)
    absent = study.row("absent", lambda: _absent(model, test, answers), weights=weights, data=name, pairs=pairs)
    return [
        judged("error, both digits right", [1 - scores["accuracy"]], 0.052, at_most=True),
        judged("overlap (IoU) of a digit's ink and its capsule's picture", [scores["segmentation_iou"]], None, False),
        judged(
            "a digit that is not there claims less ink than one that is",
            [absent["less"]],
            None,
            False,
            "share of images, for the longest capsule that is neither shown nor answered",
            limit=0.5,
        ),
    ]


def _absent(model: nn.Module, test: data.ScoredSet, answers: probes.Answers, count: int = 500) -> dict[str, float]:
    """Whether the capsule of a digit that is not in the image redraws less of its ink than that of a digit that is."""
    numbers = answers.right[:count].tolist()
    batch = probes.pick(test, numbers)
    tempting = torch.tensor([[probes.tempting(answers, n)] for n in numbers])
    shown, absent = (
        (probes.decode(model, batch.images, classes)[:, 0] * batch.images).flatten(1).sum(1)
        for classes in (batch.labels[:, :1], tempting)
    )
    return {"less": (absent < shown).float().mean().item()}
