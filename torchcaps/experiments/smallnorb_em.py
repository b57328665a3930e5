"""Matrix capsules with EM routing on smallNORB, against CNNs, and how routing gathers the votes (Figures 2 and B.2)."""

from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from torchcaps import data as named
from torchcaps.analysis.agreement import vote_distances
from torchcaps.analysis.probes import answer, pick
from torchcaps.data.sets import ImageSet
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.models.matrix import MatrixCaps
from torchcaps.viz.figures import Measured, dots, style, vote_histograms
from torchcaps.viz.figures.votes import FULL

PAPER = "Hinton, Sabour and Frosst 2018, Table 1 and Figure 2"
_CUT = (
    "networks of 66,000 to 69,000 parameters, the capsules with small convolutions below them, 3,000 steps a training "
    "in batches of 32"
)
CUT = {"quick": _CUT, "standard": _CUT}
DECIDES = ("quick", "standard", "paper")
PUBLISHED = {"matrix capsules": 0.018, "CNN": 0.052}
NORM = "CNN with batch normalisation"
SEEDS = 5
BATCH, STEPS = 64, 300_000
LOOKED_AT = 500
# With the paper's one large convolution below them, small matrix capsules learn slowly (docs/log.md).
CAPSULE_SIZES = {"quick": "-stem", "standard": "-stem", "paper": "", "smoke": "-small"}
CNN_SIZES = {**CAPSULE_SIZES, "quick": "-small", "standard": "-small"}

HURRY = {"steps": 3000, "batch": 32, "validation": 0}
SMOKE = {"image": (1, 28, 28), "classes": 10, "channels": 8, "primary_types": 2, "types": (3, 3)}


def _trials(study: Study, data: str) -> dict[str, list[Trial]]:
    models = {
        "matrix capsules": f"matrix-smallnorb{study.pick(**CAPSULE_SIZES)}",
        "CNN": f"cnn-smallnorb{study.pick(**CNN_SIZES)}",
        NORM: "cnn-smallnorb-norm",
    }
    # The authors' code: 0.96 every 20,000 steps, and a margin that grows along a logistic curve.
    whole = {"steps": STEPS, "batch": BATCH, "validation": 0, "schedule": "decay", "decay_steps": 20_000, "warmup": 0.0}
    training = study.pick(quick=HURRY, standard=HURRY, paper=whole, smoke=protocols.SMOKE)
    plain: dict[str, Any] = {"image": SMOKE["image"], "classes": SMOKE["classes"]} if study.preset == "smoke" else {}
    capsules: dict[str, Any] = study.pick(quick={}, standard={}, paper={"margin_schedule": "sigmoid"}, smoke=SMOKE)
    return {
        name: [
            Trial(
                f"{model}-{data}-{seed}",
                model,
                data,
                seed,
                dict(plain if name != "matrix capsules" else capsules),
                training,
            )
            for seed in study.seeds_or(SEEDS)
        ]
        for name, model in models.items()
    }


def plan(study: Study) -> list[Trial]:
    data = "mnist-mini" if study.preset == "smoke" else "smallnorb"
    return [trial for trials in _trials(study, data).values() for trial in trials]


def run(study: Study) -> list[Verdict]:
    data = "mnist-mini" if study.preset == "smoke" else study.data("smallnorb", stand_in="norb-style")
    trials = _trials(study, data)
    study.train_all([trial for group in trials.values() for trial in group])
    errors = {name: [1 - study.train(trial)["accuracy"] for trial in group] for name, group in trials.items()}
    model = study.model(trials["matrix capsules"][0])
    assert isinstance(model, MatrixCaps)
    with style():
        rows = [Measured(name, values, PUBLISHED.get(name)) for name, values in errors.items()]
        study.figure("errors", dots({data: rows}, "test error"))
        for name, figure in _votes(model, data).items():
            study.figure(name, figure)
    note = "" if data == "smallnorb" else f"on {data}, a stand-in: not the paper's set"
    gap = PUBLISHED["CNN"] - PUBLISHED["matrix capsules"]
    others = ("CNN", NORM)
    return [
        *(
            judged(f"{name}, error on {data}", own, PUBLISHED.get(name), True, note, cut=smaller(study))
            for name, own in errors.items()
        ),
        *(
            compared(
                f"error of the {name} above that of matrix capsules, by",
                errors[name],
                errors["matrix capsules"],
                gap if name == "CNN" else None,
                note,
            )
            for name in others
        ),
    ]


def smaller(study: Study) -> str:
    """Why a number of the paper can be reached, but not refuted, by what the shorter presets train."""
    lacking = "the paper's number is for 310,000 parameters and some 300,000 steps on smallNORB"
    return "" if study.preset == "paper" else lacking


def _votes(model: MatrixCaps, data: str) -> dict[str, Figure]:
    """Two successes of different classes and a failure, as far as there are any: zoomed in, and all distances."""
    whole = named.load_test_set(data)
    assert isinstance(whole, ImageSet)
    test = whole.take(torch.arange(min(LOOKED_AT, len(whole))))
    answers = answer(model, test)
    right, kinds = answers.right, test.labels[answers.right]
    another = right[kinds != kinds[:1]] if len(right) else right
    batch = pick(test, torch.cat([right[:1], another[:1], answers.wrong[:1]]))
    found = vote_distances(model, batch.images)
    draw = partial(vote_histograms, batch.images, *found, batch.labels[:, 0], named.resolve(data).classes)
    return {"votes": draw(), "votes-full": draw(shown=FULL)}
