"""Figure A.1: how much the routing logits still change with each iteration, from the start of training on.

The paper can be read in two ways. Procedure 1 accumulates: it adds the agreement û·v to a logit in every iteration, so
that a logit of a capsule that is sure changes by the same amount again and again, and only the couplings come to rest.
Section 2 says that the agreement "is added to the initial logit": each iteration then starts from the prior again, and
logits come to rest as well. Both are measured of the same trained networks.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.functional import squash, votes
from torchcaps.data import resolve
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, judged
from torchcaps.models.capsnet import CapsNet
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure A.1"
CUT = {
    "quick": "the small network, 500 steps of training instead of 500 epochs",
    "standard": "the small network, 4,000 steps (9 epochs) instead of 500 epochs",
}
ITERATIONS = 5
PROBED = 64
READINGS = {"accumulated": True, "initial": False}
TITLES = {"accumulated": "agreement accumulated", "initial": "agreement added to the initial logit"}
PUBLISHED = {2: 0.007, 5: 1e-5}


def plan(study: Study) -> list[Trial]:
    small, data = study.preset != "paper", "mnist-mini" if study.preset == "smoke" else "mnist"
    training = study.pick(
        quick={"steps": 500},
        standard={"steps": 4000},
        paper={**protocols.MNIST, "epochs": 500.0},
        smoke=protocols.SMOKE,
    )
    model, options = f"capsnet-mnist{'-small' if small else ''}", {"routing_options": {"iterations": ITERATIONS}}
    seeds = study.seeds_or(study.pick(quick=1, standard=5, paper=1, smoke=1))
    return [Trial(f"capsnet-{seed}", model, data, seed, options, dict(training)) for seed in seeds]


def routed_changes(u_hat: Float[Tensor, "b i j d"], accumulate: bool) -> dict[str, list[float]]:
    """The mean absolute change of logits and of couplings after each iteration, from priors of zero."""
    b = u_hat.new_zeros(u_hat.shape[:3])
    changes: dict[str, list[float]] = {"logits": [], "couplings": []}
    for _ in range(ITERATIONS):
        v = squash(torch.einsum("bij,bijd->bjd", b.softmax(-1), u_hat))
        agreement = torch.einsum("bijd,bjd->bij", u_hat, v)
        after = b + agreement if accumulate else agreement
        changes["logits"].append((after - b).abs().mean().item())
        changes["couplings"].append((after.softmax(-1) - b.softmax(-1)).abs().mean().item())
        b = after
    return changes


@torch.no_grad()
def routing_changes(model: nn.Module, pictures: Tensor) -> dict[str, float]:
    """The changes after each iteration by both readings, such as `accumulated_logits_2`."""
    assert isinstance(model, CapsNet)
    was_training = model.training
    u_hat = votes(model.eval().features(pictures).poses, model.classes.weight)
    model.train(was_training)
    return {
        f"{reading}_{kind}_{r}": value
        for reading, accumulate in READINGS.items()
        for kind, values in routed_changes(u_hat, accumulate).items()
        for r, value in enumerate(values, start=1)
    }


def _probe(data: str, model: nn.Module) -> dict[str, float]:
    """Of the first test images."""
    known = resolve(data)
    held = known.scored(known.images("test").take(torch.arange(PROBED)))
    return routing_changes(model, next(held.batches(PROBED)).images)


def _watched(study: Study, trial: Trial) -> list[dict[str, float]]:
    study.train(trial, probe=partial(_probe, trial.data))
    return [row for row in study.metrics(trial) if "initial_logits_1" in row]


def run(study: Study) -> list[Verdict]:
    trials = plan(study)
    study.at_once(partial(_watched, study), trials)
    watched = [_watched(study, trial) for trial in trials]
    epochs = [row["epoch"] for row in watched[0]]

    def lines(reading: str, kind: str) -> dict[str, Curve]:
        return {
            f"iteration {r}": Curve(epochs, [[row[f"{reading}_{kind}_{r}"] for row in rows] for rows in watched])
            for r in range(1, ITERATIONS + 1)
        }

    with style():
        panels = {f"logits, {TITLES[reading]}": lines(reading, "logits") for reading in READINGS}
        panels["couplings, agreement accumulated"] = lines("accumulated", "couplings")
        study.figure("figA1", curves(panels, "epoch", log_y=[True] * 3, marks=len(epochs) < 40))
    last, first = [rows[-1] for rows in watched], [rows[0] for rows in watched]
    shorter = study.pick(quick="", standard="9 epochs of the small network, not 500 of the paper's", paper="", smoke="")
    return [
        *(
            judged(
                f"{TITLES[reading]}: change of the logits in iteration {r}",
                [row[f"{reading}_logits_{r}"] for row in last],
                paper,
                at_most=True,
                unit="",
                note=", ".join(f"{_mean(last, f'{reading}_logits_{k}'):.1e}" for k in range(1, ITERATIONS + 1)),
                cut=shorter,
            )
            for reading in READINGS
            for r, paper in PUBLISHED.items()
        ),
        *(_falls(TITLES[reading], f"{reading}_logits", first, last) for reading in READINGS),
        _falls("couplings", "accumulated_couplings", first, last),
    ]


def _mean(rows: list[dict[str, float]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def _falls(title: str, name: str, first: list[dict[str, float]], last: list[dict[str, float]]) -> Verdict:
    """The paper: the change "decreases almost linearly in log scale with more routing iterations"."""

    def ratios(rows: list[dict[str, float]]) -> list[float]:
        return [row[f"{name}_5"] / max(row[f"{name}_2"], 1e-12) for row in rows]

    early = sum(ratios(first)) / len(first)
    note = f"5th over 2nd; paper 0.0014; at the start of training {early:.2g}"
    claim = f"{title}: the 5th iteration changes less than a tenth of the 2nd"
    return judged(claim, ratios(last), None, at_most=True, note=note, unit="", limit=0.1)
