"""Figure A.2: with three iterations of routing the training loss on CIFAR-10 falls faster, and lower, than with one.

The appendix adds that "more routing iterations increases the network capacity and tends to overfit to the training
dataset": the loss on test images is measured for up to seven iterations as well.
"""

from typing import Any

import torch

from torchcaps.data import load_test_set
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure A.2"
CUT = {
    "quick": "a small network on the same crops, 3 epochs a training",
    "standard": "a small network on the same crops, 3,500 steps a training instead of some 600,000",
}
ITERATIONS = (1, 2, 3, 5, 7)
TAIL = 0.2
SMOOTHED = 10
FLAT = 0.05
"""A loss has flattened if the last `TAIL` of the training brought at most this share of its whole fall."""


def small_cifar(study: Study, iterations: int = 3, leaky: bool = True) -> tuple[str, str, dict[str, Any]]:
    """Model, data and overrides: the paper's network, or the small one made for the same crops, none of the above."""
    routing: dict[str, Any] = {"routing_options": {"iterations": iterations, "leaky": leaky}}
    if study.preset == "paper":
        return "capsnet-cifar10", "cifar10", routing
    routing["decoder"] = None
    if study.preset == "smoke":
        return "capsnet-mnist-small", "mnist-mini", routing
    return "capsnet-cifar10-small", "cifar10", {**routing, "image": (3, 24, 24)}


def _groups(study: Study) -> dict[str, list[Trial]]:
    training = study.pick(
        quick={"epochs": 3.0, "schedule": "constant", "validation": 0},
        standard={"steps": 3500, "schedule": "exponential", "validation": 0},
        paper=protocols.CIFAR,
        smoke=protocols.SMOKE,
    )
    counts = study.pick(quick=(1, 3), standard=ITERATIONS, paper=ITERATIONS, smoke=(1, 3))
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=1, smoke=1))
    groups = {}
    for iterations in counts:
        model, data, overrides = small_cifar(study, iterations)
        groups[str(iterations)] = [
            Trial(f"r{iterations}-{s}", model, data, s, overrides, dict(training)) for s in seeds
        ]
    return groups


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


@torch.no_grad()
def loss_on_test_images(study: Study, trial: Trial) -> float:
    """The loss that is trained, of the test images."""

    def compute() -> dict[str, float]:
        model, test, total = study.model(trial), load_test_set(trial.data), 0.0
        for batch in test.batches(250):
            total += float(model.loss(model(batch.images, batch.labels), batch)["total"]) * len(batch.images)
        return {"total": total / len(test)}

    weights = study.train(trial)["weights_sha256"]
    return study.row(f"{trial.name}-test-loss", compute, trial.seed, weights=weights)["total"]


def run(study: Study) -> list[Verdict]:
    groups = search.tuned_alike(study, _groups(study))
    study.train_all(search.by_seed(groups))
    rows = {name: [study.metrics(trial) for trial in trials] for name, trials in groups.items()}
    losses = {name: [[row["total"] for row in one] for one in found] for name, found in rows.items()}
    steps = [row["step"] for row in rows["1"][0]]
    tested = {name: [loss_on_test_images(study, trial) for trial in trials] for name, trials in groups.items()}
    with style():
        lines = {_title(name): Curve(steps, losses[name]) for name in losses}
        panels = {"training loss on CIFAR-10": lines, "below that of 1 iteration, by": _below(losses, steps)}
        study.figure("figA2", curves(panels, "training step", marks=len(steps) < 40))
        if len(groups) > 2:
            counts = [int(n) for n in groups]
            after = {
                "training": Curve(counts, list(zip(*(_late(losses[n]) for n in groups), strict=True))),
                "test": Curve(counts, list(zip(*tested.values(), strict=True))),
            }
            panel = {"loss at the end": after}
            study.figure("iterations", curves(panel, "routing iterations", marks=True))
    one, three = losses["1"], losses["3"]
    falling = max(_still_falling(run) for run in (*one, *three))
    cut = f"it still fell: {falling:.0%} of the fall in the last fifth; more steps end it" if falling > FLAT else ""
    lower, faster = (
        "3 iterations reach a lower training loss than 1, by",
        "3 iterations lower it faster (mean over the training), by",
    )
    return [
        compared(lower, _late(one), _late(three), None, unit="", cut=cut),
        compared(faster, _whole(one), _whole(three), None, unit=""),
        *_overfit(losses, tested),
    ]


def _below(losses: dict[str, list[list[float]]], steps: list[float]) -> dict[str, Curve]:
    """Seed by seed, each value the mean of `SMOOTHED` that were logged one after the other."""
    spans = [slice(end - SMOOTHED, end) for end in range(min(SMOOTHED, len(steps)), len(steps) + 1)]
    middles = [_mean(steps[max(0, span.start) : span.stop]) for span in spans]
    found = {}
    for name, runs in losses.items():
        pairs = zip(losses["1"], runs, strict=True)
        gaps = [[one - other for one, other in zip(*pair, strict=True)] for pair in pairs]
        found[_title(name)] = Curve(
            middles, [[_mean(run[max(0, span.start) : span.stop]) for span in spans] for run in gaps]
        )
    return found


def _title(name: str) -> str:
    return f"{name} iteration{'s' if name != '1' else ''}"


def _overfit(losses: dict[str, list[list[float]]], tested: dict[str, list[float]]) -> list[Verdict]:
    """More iterations "tend to overfit": their loss on test images is greater than that of three."""
    return [
        compared(
            f"{name} iterations have a greater test loss than 3, by",
            tested[name],
            tested["3"],
            None,
            f"training loss {_mean(_late(losses[name])):.4f} against {_mean(_late(losses['3'])):.4f}",
            unit="",
        )
        for name in losses
        if int(name) > 3
    ]


def _late(runs: list[list[float]]) -> list[float]:
    return [_mean(run[-max(1, int(TAIL * len(run))) :]) for run in runs]


def _whole(runs: list[list[float]]) -> list[float]:
    return [_mean(run) for run in runs]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _still_falling(run: list[float]) -> float:
    """The share of a loss's fall that came in the last `TAIL` of a training.

    >>> _still_falling([1.0, 0.5, 0.25, 0.2, 0.2])
    0.0
    """
    before = run[-max(2, 1 + int(TAIL * len(run)))] if len(run) > 1 else run[0]
    return max(0.0, (before - run[-1]) / max(run[0] - run[-1], 1e-12))
