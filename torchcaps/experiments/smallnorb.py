"""Section 7, smallNORB: the MNIST network on stereo pairs of toys, halved to 48x48, random 32x32 crops of them."""

from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, judged
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, section 7"
CUT = "a small network, 600 steps a training"
PUBLISHED = 0.027
IMAGES = 24_300


def _trials(study: Study, data: str) -> list[Trial]:
    model, overrides = study.pick(
        quick=("capsnet-mnist-small", {"image": (2, 32, 32), "classes": 5}),
        paper=("capsnet-smallnorb", {}),
        smoke=("capsnet-mnist-small", {}),
    )
    training = study.pick(
        quick={"steps": 600},
        paper=protocols.published(protocols.MNIST_STEPS, IMAGES),
        smoke=protocols.SMOKE,
    )
    # Crops alone: brightness and contrast are varied in the later paper.
    training = {**training, "augment": {}}
    repeats = study.pick(quick=2, paper=1, smoke=1)
    return [Trial(f"{data}-{s}", model, data, s, overrides, dict(training)) for s in study.seeds_or(repeats)]


def plan(study: Study) -> list[Trial]:
    return _trials(study, "mnist-mini" if study.preset == "smoke" else "smallnorb")


def run(study: Study) -> list[Verdict]:
    data = "mnist-mini" if study.preset == "smoke" else study.data("smallnorb", stand_in="norb-style")
    errors = [1 - result["accuracy"] for result in study.train_all(_trials(study, data))]
    with style():
        study.figure("smallnorb", dots({data: [Measured("CapsNet", errors, PUBLISHED)]}, "test error"))
    note = "" if data == "smallnorb" else f"on {data}, a stand-in: not the paper's set"
    return [judged(f"error on {data}", errors, PUBLISHED, at_most=True, note=note)]
