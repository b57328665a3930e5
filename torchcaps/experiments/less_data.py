"""The lecture's "capsules bonus": good accuracy with far less training data? Accuracy against examples per class."""

from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Srihari, Capsule Networks (lecture), 'Training advantages of capsule nets'"
CUT = {
    "quick": "the small networks, 100 steps a training",
    "standard": "the small networks, 1,500 steps a training: 20 epochs of the largest set, 1,900 of the smallest",
}
MODELS = {"CapsNet": "capsnet-mnist", "CNN": "cnn-mnist"}
LEARNED = 0.99
"""Training has converged if so many of the last training images were right, shifted as they are."""


def sizes(study: Study) -> tuple[int, ...]:
    usual = (10, 30, 100, 300, 1000)
    return study.pick(quick=usual, standard=usual, paper=(*usual, 3000), smoke=(3, 6))


def _name(kind: str, size: int) -> str:
    return f"{kind.lower()}-{size}"


def _groups(study: Study) -> dict[str, list[Trial]]:
    """Both networks get the same images, shifted by up to two pixels, for the same number of steps."""
    groups, steps, small = {}, 20_000, "" if study.preset == "paper" else "-small"
    data = "mnist-mini" if study.preset == "smoke" else "mnist"
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=5, smoke=1))
    for size in sizes(study):
        training = study.pick(
            quick={"steps": 100, "validation": 500, "per_class": size},
            standard={"steps": 1500, "validation": 0, "per_class": size},
            paper={"epochs": steps * 128 / (10 * size), "validation": 0, "per_class": size},
            smoke={**protocols.SMOKE, "per_class": size},
        )
        for kind, model in MODELS.items():
            name = _name(kind, size)
            groups[name] = [Trial(f"{name}-{s}", model + small, data, s, {}, dict(training)) for s in seeds]
    return groups


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def run(study: Study) -> list[Verdict]:
    groups = search.tuned(study, _groups(study))
    study.train_all(search.by_seed(groups))
    scores = {name: [study.train(trial)["accuracy"] for trial in trials] for name, trials in groups.items()}
    with style():
        lines = {
            kind: Curve(sizes(study), list(zip(*(scores[_name(kind, size)] for size in sizes(study)), strict=True)))
            for kind in MODELS
        }
        panel = {"test accuracy": lines}
        study.figure("less-data", curves(panel, "training images of each class", percent=True, log_x=True, marks=True))
    verdicts = []
    for size in sizes(study):
        ours, theirs = (scores[_name(kind, size)] for kind in MODELS)
        learned = min(
            study.metrics(trial)[-1]["train_accuracy"] for kind in MODELS for trial in groups[_name(kind, size)]
        )
        verdicts.append(
            compared(
                f"{size} images of each class: CapsNet ahead of the CNN, by",
                ours,
                theirs,
                None,
                f"{sum(ours) / len(ours):.1%} against {sum(theirs) / len(theirs):.1%}",
                cut="" if learned >= LEARNED else f"training had not converged: {learned:.1%} of training images right",
            )
        )
    return verdicts
