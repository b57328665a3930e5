"""Matrix capsules with EM routing on smallNORB, against CNNs, and how routing brings the votes together (Figure 2)."""

import torch
from matplotlib.figure import Figure

from torchcaps import data as named
from torchcaps.analysis.agreement import vote_distances
from torchcaps.analysis.probes import answer, pick
from torchcaps.data.sets import ImageSet
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, compared, judged
from torchcaps.models.matrix import MatrixCaps
from torchcaps.viz.figures import Measured, dots, style, vote_histograms

PAPER = "Hinton, Sabour and Frosst 2018, Table 1 and Figure 2"
CUT = "smaller networks, two routing iterations, 1,200 steps a training of matrix capsules, 500 of the CNN"
PUBLISHED = {"matrix capsules": 0.018, "CNN": 0.052}
IMAGES, BATCH, STEPS = 24_300, 64, 300_000
LOOKED_AT = 500

QUICK = {"channels": 32, "primary_types": 4, "types": (8, 8), "routing_options": {"iterations": 2}}
# Small batches: in so little time, large ones would leave too few steps.
HURRY = {"steps": 1200, "batch": 16, "optimiser": "muon", "lr": 1e-2}
SMOKE = {"image": (1, 28, 28), "classes": 10, "channels": 8, "primary_types": 2, "types": (3, 3)}


def _trials(study: Study, data: str) -> dict[str, list[Trial]]:
    matrix, cnn = study.pick(
        quick=("matrix-smallnorb-small", "cnn-smallnorb-small"),
        paper=("matrix-smallnorb", "cnn-smallnorb"),
        smoke=("matrix-smallnorb-small", "cnn-smallnorb-small"),
    )
    published = {"epochs": STEPS * BATCH / IMAGES, "batch": BATCH, "validation": 0}
    training = study.pick(
        quick=(HURRY, {"steps": 500}),
        paper=(published, published),
        smoke=(protocols.SMOKE, protocols.SMOKE),
    )
    overrides = study.pick(quick=(QUICK, {}), paper=({}, {}), smoke=(SMOKE, {"image": (1, 28, 28), "classes": 10}))
    plans = zip(("matrix capsules", "CNN"), (matrix, cnn), overrides, training, strict=True)
    return {
        name: [Trial(f"{model}-{data}-{s}", model, data, s, dict(own), dict(long)) for s in study.seeds]
        for name, model, own, long in plans
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
        rows = [Measured(name, values, PUBLISHED[name]) for name, values in errors.items()]
        study.figure("errors", dots({data: rows}, "test error"))
        study.figure("votes", _votes(model, data))
    note = "" if data == "smallnorb" else f"on {data}, a stand-in: not the paper's set"
    gap = PUBLISHED["CNN"] - PUBLISHED["matrix capsules"]
    return [
        *(judged(f"{name}, error on {data}", own, PUBLISHED[name], True, note) for name, own in errors.items()),
        compared("CNN's error above that of matrix capsules", errors["CNN"], errors["matrix capsules"], gap, note),
    ]


def _votes(model: MatrixCaps, data: str) -> Figure:
    """The first test image that was right and the first that was wrong, if there are any."""
    whole = named.load_test_set(data)
    assert isinstance(whole, ImageSet)
    test = whole.take(torch.arange(min(LOOKED_AT, len(whole))))
    answers = answer(model, test)
    chosen = torch.cat([answers.right[:1], answers.wrong[:1]])
    batch = pick(test, chosen)
    found = vote_distances(model, batch.images)
    return vote_histograms(batch.images, *found, batch.labels[:, 0], named.resolve(data).classes)
