"""Section 7, SVHN: a smaller network on the 73,257 house numbers of the small training set.

The paper does not say that images are shifted, so they are not. Where the published files cannot be had, the set that
was rebuilt from the full-number images takes their place (`svhn-rebuilt`), and the rows say so.
"""

from typing import Any

from torchcaps.data import DATA
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, section 7"
CUT = {
    "quick": "a small network, 600 steps a training",
    "standard": "2,300 steps of the paper's network, 2,500 of a small one, 3,000 of its CNN, instead of some 300,000",
}
PUBLISHED = 0.043
IMAGES = 73_257
REBUILT = "svhn-rebuilt"
PAPERS, SMALL, CNN = "the paper's network", "small CapsNet", "CNN of its cost"
# Steps that cost about the same.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    PAPERS: ("capsnet-svhn", {}, 2300),
    SMALL: ("capsnet-svhn-small", {}, 2500),
    CNN: ("cnn-cifar10-small", {}, 3000),
}


def _data(study: Study) -> str:
    """The published set, unless only the rebuilt one is here."""
    if study.preset == "smoke":
        return "mnist-mini"
    rebuilt = DATA.get(REBUILT)
    return REBUILT if rebuilt is not None and rebuilt.is_here() and not DATA["svhn"].is_here() else "svhn"


def _groups(study: Study, data: str) -> dict[str, list[Trial]]:
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=1, smoke=1))
    kinds = study.pick(quick=(SMALL,), standard=tuple(MODELS), paper=(PAPERS,), smoke=(SMALL, CNN))
    groups = {}
    for kind in kinds:
        model, overrides, steps = MODELS[kind]
        training = study.pick(
            quick={"steps": 600},
            standard={"steps": steps, "validation": 0},
            paper=protocols.published(protocols.MNIST_STEPS, IMAGES),
            smoke=protocols.SMOKE,
        )
        training = {**training, "augment": {}}
        if study.preset == "smoke":
            overrides = {**overrides, "image": DATA[data].image}
        name = {SMALL: "capsnet", CNN: "cnn"}.get(kind, model)
        groups[kind] = [Trial(f"{name}-{s}", model, data, s, dict(overrides), dict(training)) for s in seeds]
    return groups


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study, _data(study)))


def run(study: Study) -> list[Verdict]:
    data = _data(study)
    if data == "svhn":
        study.data(data)
    groups = search.tuned(study, _groups(study, data))
    study.train_all(search.by_seed(groups))
    results = {kind: [study.train(trial) for trial in trials] for kind, trials in groups.items()}
    errors = {kind: [1 - result["accuracy"] for result in found] for kind, found in results.items()}
    with style():
        rows = [Measured(kind, found, None if kind == CNN else PUBLISHED) for kind, found in errors.items()]
        study.figure("svhn", dots({data: rows}, "test error"))
    rebuilt = "; the set is rebuilt from the full-number images" if data == REBUILT else ""
    verdicts = []
    for kind, found in results.items():
        steps = found[0]["steps"]
        note = f"{found[0]['parameters'] / 1e6:.2g} M parameters, {steps:,} steps{rebuilt}"
        cut = study.pick(quick="", standard=f"{steps:,} steps of some 300,000", paper="", smoke="")
        published = None if kind == CNN else PUBLISHED
        verdicts.append(judged(f"error on SVHN, {kind}", errors[kind], published, at_most=True, note=note, cut=cut))
    if {SMALL, CNN} <= errors.keys():
        claim = "the small CapsNet errs less than the CNN of its cost, by"
        verdicts.append(compared(claim, errors[CNN], errors[SMALL], None, rebuilt.removeprefix("; ")))
    return verdicts
