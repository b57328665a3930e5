"""Section 7, smallNORB: the network for MNIST on stereo pairs of toys."""

from typing import Any

from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, section 7"
CUT = {
    "quick": "a small network, 600 steps a training",
    "standard": "a small network (0.7 M parameters) and a CNN of its cost, 2,500 steps a training",
}
PUBLISHED = 0.027
IMAGES = 24_300
SHAPE: dict[str, Any] = {"image": (2, 32, 32), "classes": 5}
RELEASED, OFFICIAL = "CapsNet as released", {"recipe": "official", "standardise": True}


def _groups(study: Study, data: str) -> dict[str, list[Trial]]:
    small = {"CapsNet": ("capsnet-mnist-small", SHAPE), "CNN": ("cnn-mnist-small", SHAPE)}
    models: dict[str, tuple[str, dict[str, Any]]] = study.pick(
        quick={"CapsNet": small["CapsNet"]},
        standard=small,
        paper={"CapsNet": ("capsnet-smallnorb", {}), RELEASED: ("capsnet-smallnorb", OFFICIAL)},
        smoke={"CapsNet": ("capsnet-mnist-small", {}), "CNN": ("cnn-mnist-small", {})},
    )
    training = study.pick(
        quick={"steps": 600},
        standard={"steps": 2500, "validation": 0},
        paper=protocols.published(protocols.MNIST_STEPS, IMAGES),
        smoke=protocols.SMOKE,
    )
    # The paper speaks of crops alone; the released code varies brightness and contrast too.
    augment = {RELEASED: {"brightness": 63 / 255, "contrast": 0.8}}
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=1, smoke=1))
    return {
        kind: [
            Trial(
                f"{kind.lower().replace(' ', '-')}-{data}-{s}",
                model,
                data,
                s,
                overrides,
                {**training, "augment": augment.get(kind, {})},
            )
            for s in seeds
        ]
        for kind, (model, overrides) in models.items()
    }


def plan(study: Study) -> list[Trial]:
    data = {"smoke": "mnist-mini", "standard": "norb-style"}.get(study.preset, "smallnorb")
    return search.planned(study, _groups(study, data))


def run(study: Study) -> list[Verdict]:
    data = "mnist-mini" if study.preset == "smoke" else study.data("smallnorb", stand_in="norb-style")
    groups = search.tuned(study, _groups(study, data))
    study.train_all(search.by_seed(groups))
    errors = {kind: [1 - study.train(trial)["accuracy"] for trial in trials] for kind, trials in groups.items()}
    with style():
        rows = [Measured(kind, found, None if kind == "CNN" else PUBLISHED) for kind, found in errors.items()]
        study.figure("smallnorb", dots({data: rows}, "test error"))
    note = "" if data == "smallnorb" else f"on {data}, a stand-in: not the paper's set"
    cut = "" if data == "smallnorb" and study.preset == "paper" else "a small network, not on the paper's set"
    verdicts = [
        judged(
            f"{kind}, error on {data}",
            found,
            None if kind == "CNN" else PUBLISHED,
            at_most=True,
            note=note,
            cut=cut,
        )
        for kind, found in errors.items()
    ]
    if "CNN" in errors:
        claim = "the CapsNet errs less than a CNN of its cost, by"
        verdicts.append(compared(claim, errors["CNN"], errors["CapsNet"], None, note))
    return verdicts
