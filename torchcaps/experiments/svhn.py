"""Section 7, SVHN: a smaller network on the 73,257 house numbers of the small training set."""

from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, judged
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, section 7"
CUT = "a small network, 600 steps a training"
PUBLISHED = 0.043
IMAGES = 73_257


def plan(study: Study) -> list[Trial]:
    model, data, overrides = study.pick(
        quick=("capsnet-mnist-small", "svhn", {"image": (3, 32, 32)}),
        paper=("capsnet-svhn", "svhn", {}),
        smoke=("capsnet-mnist-small", "mnist-mini", {}),
    )
    training = study.pick(
        quick={"steps": 600},
        paper=protocols.published(protocols.MNIST_STEPS, IMAGES),
        smoke=protocols.SMOKE,
    )
    repeats = study.pick(quick=2, paper=1, smoke=1)
    return [Trial(f"capsnet-{s}", model, data, s, overrides, dict(training)) for s in study.seeds_or(repeats)]


def run(study: Study) -> list[Verdict]:
    if study.preset != "smoke":
        study.data("svhn")
    errors = [1 - result["accuracy"] for result in study.train_all(plan(study))]
    with style():
        study.figure("svhn", dots({"SVHN": [Measured("CapsNet", errors, PUBLISHED)]}, "test error"))
    return [judged("error on SVHN", errors, PUBLISHED, at_most=True)]
