"""Figure 3: reconstructions of test images, right and wrong ones, from their digit capsules."""

import torch

from torchcaps import data
from torchcaps.analysis import probes
from torchcaps.analysis.evaluate import evaluate
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, judged
from torchcaps.viz.figures import reconstructions, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure 3"
CUT = dict.fromkeys(("quick", "standard"), "the small network with the weights in the package")
RIGHT, WRONG = 8, 2


def _trial() -> Trial:
    return Trial("capsnet", "capsnet-mnist", "mnist", 0, {}, protocols.MNIST)


def plan(study: Study) -> list[Trial]:
    return [_trial()] if study.preset == "paper" else []


def run(study: Study) -> list[Verdict]:
    model, weights = study.network(_trial(), "capsnet-mnist-small")
    name = "mnist-mini" if study.preset == "smoke" else "mnist"
    test = data.load_test_set(name)
    answers = probes.answer(model, test)
    chosen = probes.samples(answers, RIGHT, 0, WRONG)
    with style():
        study.figure("fig3", reconstructions(probes.redraw(model, test, answers, chosen), data.resolve(name).classes))
    scores = study.row("test", lambda: evaluate(model, test), weights=weights, data=name)
    details = study.row("details", lambda: _details(model, test, answers), weights=weights, data=name)
    note = f"{details['wrong']} of {scores['images']:,} are wrong; the first {WRONG} are drawn"
    return [
        judged("squared error per pixel of the reconstructions", [scores["reconstruction_mse"]], None, True, unit=""),
        judged(
            "mistakes that look more like the image when decoded from the label",
            [details["label_closer"]],
            None,
            False,
            note,
        ),
    ]


def _details(model: torch.nn.Module, test: data.ScoredSet, answers: probes.Answers) -> dict[str, float]:
    """Of the mistakes: which of the two capsules redraws the image better?"""
    wrong = answers.wrong
    if not len(wrong):
        return {"wrong": 0, "label_closer": float("nan")}
    batch = probes.pick(test, wrong)
    errors = [
        (probes.decode(model, batch.images, classes)[:, 0] - batch.images).square().flatten(1).sum(1)
        for classes in (answers.labels[wrong], answers.predicted[wrong])
    ]
    return {"wrong": len(wrong), "label_closer": (errors[0] < errors[1]).float().mean().item()}
