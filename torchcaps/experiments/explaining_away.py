"""Explaining away: "the confirmation of one cause of an observed event reduces the need to invoke alternative causes".

Two digits are causes of the same ink. In a Bayes net P(one | ink) > P(one | ink, the other): where both digits have
ink, one of them needs to claim less of it as long as the other is there. Here the other digit is taken out of the
image, which leaves the shared pixels inked, and it is measured how much more of them the first digit's capsule draws
then.

shared      pixels with ink of both digits          own      pixels with ink of the first alone
claim       mean intensity that the first digit's capsule draws there

What is left when the other digit is gone is an easier image, and all of it may be drawn better. So the gain on shared
pixels is compared with that on the digit's own; and with that of a network whose couplings are all equal, in which
capsules cannot explain anything away by routing.
"""

import torch
from torch import nn

from torchcaps.analysis import probes
from torchcaps.data import ScoredSet, load_test_set
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.training.scoring import INK
from torchcaps.viz.figures import Measured, dots, style, titled_rows

PAPER = "Sabour, Frosst and Hinton 2017, section 6; Srihari, Capsule Networks (lecture), 'Explaining Away'"
CUT = {
    "quick": "the small networks, 300 steps a training, 2 seeds",
    "standard": "the small networks (0.8 M parameters), 2,500 steps a training",
}
ROUTED, EVEN = "3 iterations", "equal couplings"
ROUTINGS = {ROUTED: "dynamic", EVEN: "uniform"}
PAIRS, SHOWN = 2000, 6
LITTLE = 0.1
"""Less intensity than this is no ink."""


def _groups(study: Study) -> dict[str, list[Trial]]:
    training = study.pick(
        quick={"steps": 300}, standard={"steps": 2500}, paper=protocols.MULTIMNIST, smoke=protocols.SMOKE
    )
    model = "capsnet-multimnist" + ("" if study.preset == "paper" else "-small")
    data = "multimnist-mini" if study.preset == "smoke" else "multimnist"
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=1, smoke=1))
    return {
        kind: [Trial(f"{routing}-{s}", model, data, s, {"routing": routing}, dict(training)) for s in seeds]
        for kind, routing in ROUTINGS.items()
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


@torch.no_grad()
def claims(model: nn.Module, pairs: ScoredSet) -> dict[str, float]:
    """What the first digit's capsule draws on shared and on own pixels, with the other digit and without it."""
    sums = {"shared": 0.0, "own": 0.0, "shared_alone": 0.0, "own_alone": 0.0}
    counts = {"shared": 0, "own": 0}
    for batch in pairs.batches(250):
        first, other = batch.targets.unbind(1)
        places = {"shared": (first > INK) & (other > INK), "own": (first > INK) & (other < LITTLE)}
        label = batch.labels[:, :1]
        drawn = {"": probes.decode(model, batch.images, label), "_alone": probes.decode(model, first, label)}
        for name, place in places.items():
            counts[name] += int(place.sum())
            for suffix, picture in drawn.items():
                sums[name + suffix] += float((picture[:, 0] * place).sum())
    return {name: total / max(1, counts[name.removesuffix("_alone")]) for name, total in sums.items()}


def run(study: Study) -> list[Verdict]:
    groups = search.tuned(study, _groups(study))
    study.train_all(search.by_seed(groups))
    count = 100 if study.preset == "smoke" else PAIRS
    pairs = load_test_set(groups[ROUTED][0].data, count)
    found: dict[str, list[dict[str, float]]] = {}
    for kind, trials in groups.items():
        found[kind] = []
        for trial in trials:
            weights = study.train(trial)["weights_sha256"]
            row = study.row(
                f"{trial.name}-claims",
                lambda trial=trial: claims(study.model(trial), pairs),
                trial.seed,
                weights=weights,
                pairs=count,
            )
            found[kind].append(row)
    gains = {
        (kind, where): [row[f"{where}_alone"] - row[where] for row in rows]
        for kind, rows in found.items()
        for where in ("shared", "own")
    }
    more = {kind: [a - b for a, b in zip(gains[kind, "shared"], gains[kind, "own"], strict=True)] for kind in found}
    with style():
        panels = {
            f"{where} pixels: intensity gained when the other digit is gone": [
                Measured(kind, gains[kind, where]) for kind in found
            ]
            for where in ("shared", "own")
        }
        study.figure("gains", dots(panels, "intensity"))
        study.figure("examples", titled_rows(_examples(study.model(groups[ROUTED][0]), pairs)))
    return [
        *(
            judged(f"{kind}: intensity that a digit claims of {where} pixels, both digits there",
                   [row[where] for row in rows], None, False)
            for kind, rows in found.items() for where in ("shared", "own")
        ),
        compared("without the other digit, a digit claims more of the shared pixels, by",
                 [row["shared_alone"] for row in found[ROUTED]], [row["shared"] for row in found[ROUTED]], None),
        compared("the gain on shared pixels is greater than on the digit's own, by",
                 gains[ROUTED, "shared"], gains[ROUTED, "own"], None),
        compared("so much more on shared pixels than with equal couplings, by", more[ROUTED], more[EVEN], None),
    ]  # fmt: skip


def _examples(model: nn.Module, pairs: ScoredSet) -> list[tuple[str, torch.Tensor]]:
    """The first test pairs, and what the first digit's capsule draws with the other digit and without it."""
    batch = probes.pick(pairs, range(SHOWN))
    first, label = batch.targets[:, 0], batch.labels[:, :1]
    with torch.no_grad():
        together, alone = (probes.decode(model, images, label)[:, 0] for images in (batch.images, first))
    return [
        ("both digits", batch.images),
        ("one is drawn", together),
        ("the other taken out", first),
        ("it is drawn again", alone),
    ]
