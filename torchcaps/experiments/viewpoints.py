"""Section 5.1: things seen from viewpoints that were never shown. Do matrix capsules err less than CNNs of like size?

All networks learn from a part of the azimuths, or elevations, and are asked about new things from these and from the
others. The paper compares them where they are equally good at the familiar viewpoints. Here both errors are looked at
all along each training, and the error at novel viewpoints is read off where the familiar one has come down to the
least that both networks of a pair reach: no network is stopped, and none is chosen by a test set. Pairs have the same
seed, images and number of steps.
"""

from collections.abc import Sequence
from functools import lru_cache, partial

from torch import nn

from torchcaps.data import resolve
from torchcaps.data.sets import ImageSet, ScoredSet
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.looks import Look, curves_of_looks, looks_along, novel_at
from torchcaps.experiments.smallnorb_em import (
    AUTHORS,
    CAPSULE_SIZES,
    CNN_SIZES,
    NORM,
    planned_sets,
    sets,
    shape,
    smaller,
)
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.training.scoring import score
from torchcaps.viz.figures import style

PAPER = "Hinton, Sabour and Frosst 2018, section 5.1 and Table 2"
_CUT = (
    "networks of 66,000 to 69,000 parameters, the capsules with small convolutions below them, 1,500 steps of 32 "
    "images; 500 images of familiar and 1,000 of novel viewpoints at each look"
)
CUT = {"quick": _CUT, "standard": _CUT}
DECIDES = ("quick", "standard", "paper")
# Test errors of Table 2: at familiar viewpoints (both), at novel ones the capsules, the CNN.
PUBLISHED = {"azimuth": (0.037, 0.135, 0.200), "elevation": (0.043, 0.123, 0.178)}
CAPSULES = "capsules"
NETWORKS = {CAPSULES: "matrix-smallnorb", "CNN": "cnn-smallnorb", NORM: "cnn-smallnorb-norm"}
SEEDS = 5
ASKED = (500, 1000)
"""Images of familiar and of novel viewpoints at each look."""
AXES = ("error at familiar viewpoints", "error at novel ones")


def _trial(study: Study, kind: str, data: str, by: str, seed: int) -> Trial:
    sizes = CAPSULE_SIZES if kind == CAPSULES else CNN_SIZES
    name = NETWORKS[kind] + ("" if kind == NORM else study.pick(**sizes))
    training = study.pick(
        quick={"steps": 1500, "batch": 32, "validation": 0},
        standard={"steps": 1500, "batch": 32, "validation": 0},
        paper=AUTHORS,
        smoke={**protocols.SMOKE, "validation": 0},
    )
    overrides = shape(study, data, capsules=kind == CAPSULES)
    return Trial(
        f"{data}-{by}-{kind.replace(' ', '-').lower()}-{seed}", name, _part(data, by), seed, overrides, training
    )


def _part(data: str, by: str, suffix: str = "") -> str:
    """The data of the smoke test has no viewpoints."""
    return data if data == "mnist-mini" else f"{data}:{by}{suffix}"


def _trials(study: Study, data: str, by: str) -> dict[str, list[Trial]]:
    return {kind: [_trial(study, kind, data, by, seed) for seed in study.seeds_or(SEEDS)] for kind in NETWORKS}


def _groups(study: Study, found: list[str]) -> dict[str, list[Trial]]:
    """By data, viewpoints and network."""
    return {
        f"{data} {by} {kind}": trials
        for data in found
        for by in PUBLISHED
        for kind, trials in _trials(study, data, by).items()
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study, planned_sets(study)))


def run(study: Study) -> list[Verdict]:
    found = sets(study)
    verdicts: list[Verdict] = []
    gaps: list[Verdict] = []
    groups = search.tuned(study, _groups(study, found))
    study.at_once(partial(_looks, study), search.by_seed(groups))
    for data in found:
        note = "" if data == "smallnorb" else f"on {data}: not the paper's set"
        for by in PUBLISHED:
            looks = {kind: [_looks(study, trial) for trial in groups[f"{data} {by} {kind}"]] for kind in NETWORKS}
            with style():
                study.figure(f"{data}-{by}".replace(":", "-"), curves_of_looks(looks, f"{data}, {by}s", *AXES))
            for kind, seeds in looks.items():
                last = [one[-1].familiar for one in seeds]
                paper = PUBLISHED[by][0] if kind != NORM else None
                claim = f"{kind}, error at familiar {by}s of {data}, at the end"
                verdicts.append(judged(claim, last, paper, True, note, cut=smaller(study)))
            gaps += [
                _gap(data, by, kind, note, *matched(looks[CAPSULES], looks[kind]))
                for kind in NETWORKS
                if kind != CAPSULES
            ]
    return [*verdicts, *gaps]


def _gap(data: str, by: str, kind: str, note: str, ours: list[float], theirs: list[float]) -> Verdict:
    claim = f"{data}: at equal error at familiar {by}s, the {kind}'s error at novel ones exceeds the capsules' by"
    _, published, of_cnn = PUBLISHED[by]
    return compared(claim, theirs, ours, of_cnn - published if kind == "CNN" else None, note)


def matched(ours: Sequence[Sequence[Look]], theirs: Sequence[Sequence[Look]]) -> tuple[list[float], list[float]]:
    """Errors at novel viewpoints where both of a pair are equally good at the familiar ones, as good as both become."""
    novel: tuple[list[float], list[float]] = ([], [])
    for pair in zip(ours, theirs, strict=True):
        level = max(min(look.familiar for look in looks) for looks in pair)
        for errors, looks in zip(novel, pair, strict=True):
            errors.append(novel_at(looks, level))
    return novel


def _looks(study: Study, trial: Trial) -> list[Look]:
    """The errors along a training."""
    asked = study.pick(quick=ASKED, standard=ASKED, paper=(10**6, 10**6), smoke=(20, 20))
    study.train(trial, partial(_probe, trial.data, asked))
    return looks_along(study.metrics(trial))


def _probe(data: str, asked: tuple[int, int], model: nn.Module) -> dict[str, float]:
    novel = data if data == "mnist-mini" else f"{data}-novel"
    sets = (_asked(name, count) for name, count in zip((data, novel), asked, strict=True))
    return {name: score(model, part)["accuracy"] for name, part in zip(("familiar", "novel"), sets, strict=True)}


@lru_cache(maxsize=4)
def _asked(name: str, count: int) -> ScoredSet:
    known = resolve(name)
    images: ImageSet = known.images("test")
    return known.scored(images.split(count)[1] if count < len(images) else images)
