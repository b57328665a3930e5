"""The lecture's Picasso: "mouth and nose have switched places but the CNN still classifies it as a face".

The networks learn faces against heads with other parts, never a face with its parts in the wrong places; then they are
asked about those. Taking them for something else would need the places; taking them for faces needs the parts only.
The lecture blames max-pooling, so there is a CNN with it, and one with the CapsNet's backbone, which has none.

Its ship is the second case: one whose parts have changed places (a "disfiguration") should not be taken for a ship, one
with other proportions should.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis import probes
from torchcaps.data import ImageSet, images
from torchcaps.data.synthetic import faces, ships
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.viz.figures import Measured, dots, style, titled_rows

PAPER = "Srihari, Capsule Networks (lecture), 'Example of CNN limitation', 'Pooling, Invariance, Equivariance'"
CUT = {
    "quick": "the small networks, 200 steps a training, 2 seeds",
    "standard": "the small networks, 800 steps a training",
}
CAPSNET, POOLED, PLAIN = "CapsNet", "CNN with max-pooling", "CNN without it"
SMALL = {CAPSNET: "capsnet-mnist-small", POOLED: "cnn-affnist-small", PLAIN: "cnn-mnist-small"}
PAPERS = {CAPSNET: "capsnet-mnist", PLAIN: "cnn-mnist"}
ASKED = 1000


@dataclass(frozen=True)
class Thing:
    """A class whose pictures are asked about, spoilt in ways that were never shown."""

    data: str
    plural: str
    spoilt: dict[str, Callable[[int], Tensor]]


THINGS = (
    Thing("faces", "faces", {"swapped": faces.swapped}),
    Thing("ships", "ships", {"disfigured": ships.disfigured, "stretched": ships.stretched}),
)


def _groups(study: Study) -> dict[str, list[Trial]]:
    models = PAPERS if study.preset == "paper" else SMALL
    training = study.pick(quick={"steps": 200}, standard={"steps": 800}, paper={"epochs": 50.0}, smoke=protocols.SMOKE)
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=5, smoke=1))
    shape = {"classes": 2, "image": (1, 28, 28)}
    return {
        f"{kind}, {thing.data}": [
            Trial(f"{model}-{thing.data}-{s}", model, thing.data, s, dict(shape), dict(training)) for s in seeds
        ]
        for thing in THINGS
        for kind, model in models.items()
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def _called(study: Study, trial: Trial, thing: Thing, spoilt: str) -> float:
    """The share of the spoilt pictures that are taken for the thing itself."""

    def compute() -> dict[str, float]:
        pictures = thing.spoilt[spoilt](ASKED)
        asked = ImageSet(spoilt, pictures, torch.zeros(len(pictures), dtype=torch.int64), faces.CLASSES)
        answers = probes.answer(study.model(trial), asked)
        return {"called": len(answers.right) / ASKED, "sure": answers.lengths[:, 0].mean().item()}

    weights = study.train(trial)["weights_sha256"]
    return study.row(f"{trial.name}-{spoilt}", compute, trial.seed, weights=weights)["called"]


def run(study: Study) -> list[Verdict]:
    groups = search.tuned(study, _groups(study))
    study.train_all(search.by_seed(groups))
    kinds = list(PAPERS if study.preset == "paper" else SMALL)
    verdicts: list[Verdict] = []
    panels: dict[str, list[Measured]] = {}
    for thing in THINGS:
        trials = {kind: groups[f"{kind}, {thing.data}"] for kind in kinds}
        accuracy = {kind: [study.train(trial)["accuracy"] for trial in found] for kind, found in trials.items()}
        panels[f"{thing.plural} and others, told apart"] = [Measured(kind, accuracy[kind]) for kind in kinds]
        verdicts += [
            judged(f"{kind}: accuracy on {thing.plural} and others", accuracy[kind], None, False) for kind in kinds
        ]
        for spoilt in thing.spoilt:
            called = {kind: [_called(study, trial, thing, spoilt) for trial in found] for kind, found in trials.items()}
            what = f"{spoilt} {thing.plural}"
            panels[f"{what}, taken for {thing.plural}"] = [Measured(kind, called[kind]) for kind in kinds]
            verdicts += _accepted(what, thing.plural, called) if spoilt == "stretched" else _fooled(what, thing, called)
    with style():
        study.figure("parts", titled_rows(_rows()))
        study.figure("picasso", dots(panels, "share of images"))
    return verdicts


def _fooled(what: str, thing: Thing, called: dict[str, list[float]]) -> list[Verdict]:
    others = [kind for kind in called if kind != CAPSNET]
    rejected = [1 - share for share in called[CAPSNET]]
    return [
        *(
            judged(f"half of the {what} or more are {thing.plural} to the {kind}", called[kind], None, False, limit=0.5)
            for kind in others
        ),
        judged(f"the CapsNet takes at least half of the {what} for something else", rejected, None, False, limit=0.5),
        *(
            compared(f"{what}: fewer fool the CapsNet than the {kind}, by", called[kind], called[CAPSNET], None)
            for kind in others
        ),
    ]  # fmt: skip


def _accepted(what: str, plural: str, called: dict[str, list[float]]) -> list[Verdict]:
    note = ", ".join(f"{kind} {sum(shares) / len(shares):.1%}" for kind, shares in called.items())
    return [
        compared(
            f"{what}: the CapsNet takes more of them for {plural} than the {kind}, by",
            called[CAPSNET],
            called[kind],
            None,
            note,
        )
        for kind in called
        if kind != CAPSNET
    ]


def _rows(columns: int = 7) -> list[tuple[str, Tensor]]:
    """Training images and test images."""
    rows: list[tuple[str, Tensor]] = []
    for thing in THINGS:
        test = images(thing.data, "test")
        rows += [(name, test.images[test.labels == k][:columns] / 255) for k, name in enumerate(test.classes)]
        rows += [(spoilt, make(columns) / 255) for spoilt, make in thing.spoilt.items()]
    return rows
