"""Figure 5: two digits on top of each other, each redrawn by its own capsule, and the segmentation that follows.

The columns are the paper's: pairs that were recognised; one digit of a pair beside one that is not there (*); wrong
answers from the labels and from the prediction (P). The first test pairs of each kind are taken.
"""

import torch
from torch import nn

from torchcaps import data
from torchcaps.analysis import probes
from torchcaps.analysis.evaluate import evaluate
from torchcaps.analysis.segmentation import RULES, segmentation
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, judged
from torchcaps.viz.figures import segmentations, style, titled_rows
from torchcaps.viz.figures.style import overlaid

PAPER = "Sabour, Frosst and Hinton 2017, Figure 5"
_CUT = "the small network with the weights in the package; 10,000 instead of 10 M test pairs"
CUT = {"quick": _CUT, "standard": _CUT}
RIGHT, ABSENT, WRONG = 6, 2, 2
SHOWN = 6


def trial() -> Trial:
    return Trial("capsnet", "capsnet-multimnist", "multimnist", 0, {}, protocols.MULTIMNIST)


def plan(study: Study) -> list[Trial]:
    return [trial()] if study.preset == "paper" else []


def run(study: Study) -> list[Verdict]:
    model, weights = study.network(trial(), "capsnet-multimnist-fine")
    name, pairs = ("multimnist-mini", 200) if study.preset == "smoke" else ("multimnist", 10_000)
    test = data.load_test_set(name, pairs)
    answers = probes.answer(model, test)
    drawn = probes.redraw(model, test, answers, probes.samples(answers, RIGHT, ABSENT, WRONG))
    with style():
        study.figure("fig5", segmentations(drawn, data.resolve(name).classes))
        study.figure("segmentation", titled_rows(_masks(model, test)))
    scores = study.row("test", lambda: evaluate(model, test), weights=weights, data=name, pairs=pairs)
    absent = study.row("absent", lambda: _absent(model, test, answers), weights=weights, data=name, pairs=pairs)
    taken = study.row("segmentation", lambda: segmentation(model, test), weights=weights, data=name, pairs=pairs)
    rules = [
        judged(
            f"overlap (IoU) of a digit and {rule.title}",
            [taken[key]["iou"]],
            None,
            False,
            f"from the two longest capsules, which claim {taken[key]['covered']:.1%} of the ink; of the ink of both "
            f"digits, {taken[key]['shared']:.1%} is claimed by both",
        )
        for key, rule in RULES.items()
    ]
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
        *rules,
    ]


def _masks(model: nn.Module, test: data.ScoredSet) -> list[tuple[str, torch.Tensor]]:
    """The first test pairs, what the longest capsules draw, and the pixels that each rule gives to either digit."""
    batch = probes.pick(test, range(SHOWN))
    with torch.no_grad():
        longest = model(batch.images).lengths.topk(2).indices.tolist()
    chosen = [probes.aligned(found, labels) for found, labels in zip(longest, batch.labels.tolist(), strict=True)]
    pictures = probes.decode(model, batch.images, torch.tensor(chosen))
    rows = [("reconstructions", pictures), ("the digits", batch.targets)]
    rows += [(f"claimed, {name}", rule.claim(pictures, batch.images).float()) for name, rule in RULES.items()]
    coloured = [
        (title, torch.stack([torch.from_numpy(overlaid(pair)).permute(2, 0, 1) for pair in pairs]))
        for title, pairs in rows
    ]
    return [("input", batch.images), *coloured]


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
