"""Figure A.2: with three iterations of routing the training loss on CIFAR-10 falls faster, and lower, than with one."""

from typing import Any

from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, compared
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure A.2"
CUT = "a small network on the same crops, 3 epochs a training"
ITERATIONS = (1, 3)
TAIL = 0.2


def small_cifar(study: Study, iterations: int = 3) -> tuple[str, str, dict[str, Any]]:
    """Model, data and overrides: the paper's network, or the small one made for the same crops, none of the above."""
    routing: dict[str, Any] = {"routing_options": {"iterations": iterations, "leaky": True}}
    if study.preset == "paper":
        return "capsnet-cifar10", "cifar10", routing
    routing["decoder"] = None
    if study.preset == "smoke":
        return "capsnet-mnist-small", "mnist-mini", routing
    return "capsnet-mnist-small", "cifar10", {**routing, "image": (3, 24, 24), "primary_types": 8}


def _trials(study: Study, iterations: int) -> list[Trial]:
    training = study.pick(
        quick={"epochs": 3.0, "schedule": "constant", "validation": 0},
        paper=protocols.CIFAR,
        smoke=protocols.SMOKE,
    )
    model, data, overrides = small_cifar(study, iterations)
    repeats = study.pick(quick=2, paper=1, smoke=1)
    return [Trial(f"r{iterations}-{s}", model, data, s, overrides, dict(training)) for s in study.seeds_or(repeats)]


def plan(study: Study) -> list[Trial]:
    return [trial for iterations in ITERATIONS for trial in _trials(study, iterations)]


def run(study: Study) -> list[Verdict]:
    losses: dict[int, list[list[float]]] = {}
    steps: list[float] = []
    study.train_all(plan(study))
    for iterations in ITERATIONS:
        losses[iterations] = []
        for trial in _trials(study, iterations):
            rows = study.metrics(trial)
            steps = [row["step"] for row in rows]
            losses[iterations].append([row["total"] for row in rows])
    with style():
        lines = {f"{n} iteration{'s' if n > 1 else ''}": Curve(steps, losses[n]) for n in ITERATIONS}
        study.figure("figA2", curves({"training loss on CIFAR-10": lines}, "training step", marks=len(steps) < 40))

    def late(runs: list[list[float]]) -> list[float]:
        return [sum(tail) / len(tail) for tail in (run[-max(1, int(TAIL * len(run))) :] for run in runs)]

    def whole(runs: list[list[float]]) -> list[float]:
        return [sum(run) / len(run) for run in runs]

    one, three = (losses[n] for n in ITERATIONS)
    return [
        compared("3 iterations reach a lower training loss than 1, by", late(one), late(three), None, unit=""),
        compared("3 iterations lower it faster (mean over the training), by", whole(one), whole(three), None, unit=""),
    ]
