"""The lecture's "capsules bonus": good accuracy with far less training data? Accuracy against examples per class."""

from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, compared
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Srihari, Capsule Networks (lecture), 'Training advantages of capsule nets'"
CUT = "the small networks, 100 steps a training"
MODELS = {"CapsNet": "capsnet-mnist", "CNN": "cnn-mnist"}


def sizes(study: Study) -> tuple[int, ...]:
    return study.pick(quick=(10, 30, 100, 300, 1000), paper=(10, 30, 100, 300, 1000, 3000), smoke=(3, 6))


def _trials(study: Study, kind: str, size: int) -> list[Trial]:
    """Both networks get the same images, shifted by up to two pixels, for the same time or number of steps."""
    steps = 20_000
    training = study.pick(
        quick={"steps": 100, "validation": 500, "per_class": size},
        paper={"epochs": steps * 128 / (10 * size), "validation": 0, "per_class": size},
        smoke={**protocols.SMOKE, "per_class": size},
    )
    model = MODELS[kind] + study.pick(quick="-small", paper="", smoke="-small")
    data = study.pick(quick="mnist", paper="mnist", smoke="mnist-mini")
    seeds = study.seeds_or(study.pick(quick=2, paper=5, smoke=1))
    return [Trial(f"{kind.lower()}-{size}-{s}", model, data, s, {}, dict(training)) for s in seeds]


def plan(study: Study) -> list[Trial]:
    return [trial for size in sizes(study) for kind in MODELS for trial in _trials(study, kind, size)]


def run(study: Study) -> list[Verdict]:
    study.train_all(plan(study))
    scores = {
        kind: [[study.train(trial)["accuracy"] for trial in _trials(study, kind, size)] for size in sizes(study)]
        for kind in MODELS
    }
    with style():
        lines = {kind: Curve(sizes(study), list(zip(*scores[kind], strict=True))) for kind in MODELS}
        panel = {"test accuracy": lines}
        study.figure("less-data", curves(panel, "training images of each class", percent=True, log_x=True, marks=True))
    return [
        compared(
            f"{size} images of each class: CapsNet ahead of the CNN, by",
            ours,
            theirs,
            None,
            f"{sum(ours) / len(ours):.1%} against {sum(theirs) / len(theirs):.1%}",
        )
        for size, ours, theirs in zip(sizes(study), scores["CapsNet"], scores["CNN"], strict=True)
    ]
