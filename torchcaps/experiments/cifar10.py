"""Section 7, CIFAR-10: an ensemble of capsule networks on 24x24 crops; the routing has a "none of the above" class."""

import torch

from torchcaps.analysis import probes
from torchcaps.data import load_test_set
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, judged
from torchcaps.experiments.fig_a2 import small_cifar
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, section 7"
CUT = "an ensemble of 2 small networks, 800 steps a training"
PUBLISHED, NETWORKS = 0.106, 7


def plan(study: Study) -> list[Trial]:
    model, data, overrides = small_cifar(study)
    training = study.pick(quick={"steps": 800}, paper=protocols.CIFAR, smoke=protocols.SMOKE)
    networks = study.trials or study.pick(quick=2, paper=NETWORKS, smoke=2)
    return [Trial(f"capsnet-{s}", model, data, s, overrides, dict(training)) for s in range(networks)]


def run(study: Study) -> list[Verdict]:
    trials = plan(study)
    results = study.train_all(trials)

    def ensemble() -> dict[str, float]:
        test = load_test_set(trials[0].data)
        answers = [probes.answer(study.model(trial), test) for trial in trials]
        together = probes.Answers(torch.stack([a.lengths for a in answers]).mean(0), answers[0].labels)
        return {"error": len(together.wrong) / len(test)}

    error = study.row("ensemble", ensemble, weights=[result["weights_sha256"] for result in results])["error"]
    errors = [1 - result["accuracy"] for result in results]
    with style():
        rows = [Measured(f"ensemble of {len(trials)}", [error], PUBLISHED), Measured("one network", errors)]
        study.figure("cifar10", dots({"CIFAR-10": rows}, "test error"))
    return [
        judged(f"error of the ensemble of {len(trials)} (paper: {NETWORKS})", [error], PUBLISHED, at_most=True),
        judged("error of one network", errors, None, at_most=True),
        Verdict("the ensemble errs less than its members, by", None, sum(errors) / len(errors) - error, None,
                len(trials), error < min(errors)),
    ]  # fmt: skip
