"""Section 5.1: toys seen from viewpoints that were never shown. Do matrix capsules err less than a CNN of like size?

Both learn from a third of the azimuths, or elevations, and are asked about new toys from these and from the others. As
in the paper they are made equally good at the familiar viewpoints first: the capsules train for their time, the CNN
until it is as good as they are on toys that were kept back from training. Nothing is chosen by the test set, on which
they need not be equally good then; what is compared is by how much their errors grow, and nothing is decided where
they were unequal from the start.
"""

from dataclasses import replace
from functools import partial

from torchcaps.analysis.evaluate import evaluate
from torchcaps.data import resolve
from torchcaps.data.sets import ScoredSet
from torchcaps.data.viewpoints import FAMILIAR
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, compared, judged
from torchcaps.experiments.smallnorb_em import BATCH, HURRY, IMAGES, QUICK, SMOKE, STEPS
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Hinton, Sabour and Frosst 2018, section 5.1 and Table 2"
CUT = (
    "matrix capsules of 18 K parameters with two routing iterations, 1,200 steps a training, against a CNN of 69 K, at "
    "most 600; 3,000 images of novel viewpoints"
)
# Test errors of Table 2: at familiar viewpoints (both), at novel ones the capsules, the CNN.
PUBLISHED = {"azimuth": (0.037, 0.135, 0.200), "elevation": (0.043, 0.123, 0.178)}
KINDS: tuple[str, ...] = ("capsules", "CNN")
SEEDS = 3
LEARNED = 4 / 5
"""Of the toys of a category; one is kept back to compare by."""


def _trial(study: Study, kind: str, data: str, by: str, seed: int) -> Trial:
    name = {"capsules": "matrix-smallnorb", "CNN": "cnn-smallnorb"}[kind]
    model = name + study.pick(quick="-small", paper="", smoke="-small")
    budget = study.pick(
        quick=HURRY if kind == "capsules" else {"steps": 600},
        paper={"epochs": STEPS * BATCH / (IMAGES / 3 * LEARNED)},
        smoke=protocols.SMOKE,
    )
    training = {**budget, "validation": study.pick(quick=800, paper=1620, smoke=20)}
    if kind == "CNN":
        # Short steps at one pace, so that the mark is met closely: it is looked for every 50 of them.
        training |= {"schedule": "constant", "batch": study.pick(quick=32, paper=32, smoke=16)}
    overrides = study.pick(
        quick={"capsules": QUICK, "CNN": {}},
        paper={"capsules": {}, "CNN": {}},
        smoke={"capsules": SMOKE, "CNN": {"image": SMOKE["image"], "classes": SMOKE["classes"]}},
    )
    return Trial(f"{by}-{kind.lower()}-{seed}", model, _part(data, by), seed, dict(overrides[kind]), training)


def _part(data: str, by: str, suffix: str = "") -> str:
    """The data of the smoke test has no viewpoints."""
    return data if data == "mnist-mini" else f"{data}:{by}{suffix}"


def plan(study: Study) -> list[Trial]:
    """Where the CNN stops is known only when the capsules are trained."""
    data = study.pick(quick="smallnorb", paper="smallnorb", smoke="mnist-mini")
    return [_trial(study, kind, data, by, seed) for by in FAMILIAR for seed in study.seeds_or(SEEDS) for kind in KINDS]


def _accuracy(study: Study, part: str, data: ScoredSet, trial: Trial) -> float:
    weights = study.train(trial)["weights_sha256"]
    score = study.row(
        f"{trial.name}-{part}",
        lambda: evaluate(study.model(trial), data),
        trial.seed,
        weights=weights,
        data=data.name,
        images=len(data),
    )
    return score["accuracy"]


def run(study: Study) -> list[Verdict]:
    data = study.data("smallnorb", stand_in="norb-style") if study.preset != "smoke" else "mnist-mini"
    note = "" if data == "smallnorb" else f"on {data}, a stand-in: not the paper's set"
    verdicts, groups = [], {}
    for by, (familiar_error, *novel_errors) in PUBLISHED.items():
        familiar, novel, missed = _measure(study, data, by)
        published = dict(zip(KINDS, novel_errors, strict=True))
        groups[f"familiar {by}s"] = [Measured(kind, familiar[kind], familiar_error) for kind in KINDS]
        groups[f"novel {by}s"] = [Measured(kind, novel[kind], published[kind]) for kind in KINDS]
        unequal = f"{missed} CNNs did not become as good as the capsules at familiar {by}s" if missed else ""
        remark = "; ".join(filter(None, (unequal, note)))
        verdicts += [
            judged(f"{kind}, error at familiar {by}s", familiar[kind], familiar_error, True, remark) for kind in KINDS
        ]
        verdicts += [
            judged(f"{kind}, error at novel {by}s", novel[kind], published[kind], True, note) for kind in KINDS
        ]
        equal = compared("", familiar["CNN"], familiar["capsules"], None).holds is None
        growth = {kind: [n - f for n, f in zip(novel[kind], familiar[kind], strict=True)] for kind in KINDS}
        grown = compared(
            f"from familiar to novel {by}s the capsules' error grows less than the CNN's, by",
            growth["CNN"],
            growth["capsules"],
            published["CNN"] - published["capsules"],
            remark if equal else "; ".join(filter(None, (f"not equally good at familiar {by}s of new toys", remark))),
        )
        # Where one is worse from the start, how the errors grow says little about viewpoints.
        verdicts.append(grown if equal else replace(grown, holds=None))
    with style():
        study.figure("viewpoints", dots(groups, "test error"))
    return verdicts


def _measure(study: Study, data: str, by: str) -> tuple[dict[str, list[float]], dict[str, list[float]], int]:
    """Errors at familiar and at novel viewpoints, by seed; and how many CNNs did not reach the target accuracy."""
    novel_views = resolve(_part(data, by, "-novel"))
    asked = novel_views.images("test")
    count = study.pick(quick=3000, paper=len(asked), smoke=100)
    unseen = novel_views.scored(asked.split(min(count, len(asked)))[1])
    familiar: dict[str, list[float]] = {kind: [] for kind in KINDS}
    novel: dict[str, list[float]] = {kind: [] for kind in KINDS}
    capsules, cnns = ([_trial(study, kind, data, by, seed) for seed in study.seeds_or(SEEDS)] for kind in KINDS)
    study.train_all(capsules)
    familiar_views = resolve(capsules[0].data)
    kept = familiar_views.scored(familiar_views.training_and_validation(capsules[0].config.validation)[1])
    marks = [_accuracy(study, "validation", kept, trial) for trial in capsules]
    cnns = [replace(cnn, training={**cnn.training, "stop_at": mark}) for cnn, mark in zip(cnns, marks, strict=True)]
    missed = sum(result["selection"] == "last step" for result in study.train_all(cnns))
    novelty = partial(_accuracy, study, "novel", unseen)
    study.at_once(novelty, [*capsules, *cnns])
    for kind, trials in zip(KINDS, (capsules, cnns), strict=True):
        for trial in trials:
            familiar[kind].append(1 - study.train(trial)["accuracy"])
            novel[kind].append(1 - novelty(trial))
    return familiar, novel, missed
