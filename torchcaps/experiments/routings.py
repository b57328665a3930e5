"""All routings under equal conditions: the same backbone, steps and seeds, a learning rate of its own for each.

Two networks are trained for each routing and seed: one on digits that are moved about on a 40x40 canvas, scored on
MNIST's test digits in the middle of it and on affinely transformed ones; one on overlapping digits. Besides the scores,
these are measured: the cost of a routing, and

entropy      of a child's couplings over its parents, as a share of the largest possible (1: all couplings are equal),
             averaged over the children in proportion to their activation
changed      share of the answers that change when every coupling of the trained network is made 1 / parents
dead         capsules whose activation exceeds `DEAD` for no test image
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps import data
from torchcaps.core.functional import coupling_entropy, votes
from torchcaps.data.sets import Batch, ImageSet, ScoredSet
from torchcaps.data.synthetic.multimnist import TEST_PAIRS
from torchcaps.data.transforms import place
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, mean_and_spread
from torchcaps.kernels import workspace
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.registry import configure, count_parameters, create_model
from torchcaps.routing import ROUTINGS
from torchcaps.training.forecast import peak_bytes
from torchcaps.training.scoring import exact_match
from torchcaps.viz.figures import Measured, dots, style

PAPER = "the papers of the routings; Paik, Kwak and Kim, Capsule networks need an improved routing algorithm, 2019"
STEPS = {
    "quick": {"translated": 200, "multimnist": 200},
    "standard": {"translated": 300, "multimnist": 800},
    "paper": {"translated": 1000, "multimnist": 1000},
}
CUT = {
    "quick": "200 steps a training, 3 seeds, the same learning rate for all",
    "standard": "300 steps on translated digits, 800 on overlapping ones",
}
SEEDS = {"quick": 3, "standard": 5, "paper": 5, "smoke": 1}
SIDE = 40
DEAD = 0.1
"""The lower margin of the margin loss (Eq. 4 of Sabour et al. 2017): what counts as absent."""
REPEATS = 5
CONTROL = "uniform"


def _sets(study: Study) -> dict[str, str]:
    """The sets for training and testing: single digits, transformed digits, overlapping digits."""
    real = {"translated": "translated-mnist", "mnist": "mnist", "affnist": "affnist-style", "multimnist": "multimnist"}
    mini = {name: f"{name}-mini" for name in ("mnist", "multimnist")}
    small = {**mini, "translated": "affnist-style-mini", "affnist": "affnist-style-mini"}
    return small if study.preset == "smoke" else real


def _trial(study: Study, routing: str, task: str, seed: int) -> Trial:
    budget = protocols.SMOKE if study.preset == "smoke" else {"steps": STEPS[study.preset][task]}
    model, network = {
        "translated": ("capsnet-mnist-small", {"image": (1, SIDE, SIDE)}),
        "multimnist": ("capsnet-multimnist-small", {}),
    }[task]
    name = f"{routing}-{task}-{seed}"
    return Trial(name, model, _sets(study)[task], seed, {**network, "routing": routing}, dict(budget))


def _groups(study: Study) -> dict[str, list[Trial]]:
    """By routing and task."""
    seeds = study.seeds_or(SEEDS[study.preset])
    return {
        f"{routing}-{task}": [_trial(study, routing, task, seed) for seed in seeds]
        for routing in _routings(study)
        for task in ("translated", "multimnist")
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def _routings(study: Study) -> list[str]:
    return ["dynamic", "self-routing", CONTROL] if study.preset == "smoke" else list(ROUTINGS)


def centred(name: str) -> ImageSet:
    """The test digits of a set in the middle of the large canvas."""
    digits = data.images(name, "test")
    corner = (SIDE - digits.images.shape[-1]) // 2
    blocks = [place(block, torch.full((len(block), 2), corner), SIDE, SIDE) for block in digits.images.split(1000)]
    return ImageSet(f"{name}, centred", torch.cat(blocks), digits.labels, digits.classes)


def evenly(logits: Float[Tensor, "b i j"]) -> Float[Tensor, "b i j"]:
    """A competition that couples each child equally to all parents, whatever the logits are."""
    return logits + math.log(logits.shape[-1])


@torch.no_grad()
def inspect(model: CapsNet, asked: ScoredSet) -> dict[str, float]:
    """Scores with the routing and with equal couplings, and the couplings' entropy on every test image."""
    layer = model.classes
    children_most, classes_most = torch.zeros(layer.weight.shape[0]), torch.zeros(layer.weight.shape[1])
    sums = {"accuracy": 0.0, "accuracy_evenly": 0.0, "changed": 0.0, "entropy": 0.0}
    for batch in asked.batches(250):
        output = model(batch.images, trace=True)
        children = output.children
        assert output.trace is not None
        assert children is not None
        even = layer.routing(votes(children.poses, layer.weight), children, competition=evenly)
        k = batch.labels.shape[1]
        answers = [lengths.topk(k).indices.sort().values for lengths in (output.lengths, even.activations)]
        sums["accuracy"] += float(exact_match(output.lengths, batch.labels).sum())
        sums["accuracy_evenly"] += float(exact_match(even.activations, batch.labels).sum())
        sums["changed"] += float((answers[0] != answers[1]).any(1).sum())
        sums["entropy"] += float(_entropy(output.trace.couplings[-1], children.activations).sum())
        children_most = torch.maximum(children_most, children.activations.amax(0))
        classes_most = torch.maximum(classes_most, output.lengths.amax(0))
    means = {name: total / len(asked) for name, total in sums.items()}
    dead = {"dead_primary": children_most, "dead_classes": classes_most}
    return means | {name: (most <= DEAD).float().mean().item() for name, most in dead.items()}


def _entropy(couplings: Float[Tensor, "b i j"], activations: Float[Tensor, "b i"]) -> Float[Tensor, "b"]:
    entropy = coupling_entropy(couplings) / math.log(couplings.shape[-1])
    return (entropy * activations).sum(1) / activations.sum(1).clamp(min=1e-12)


def cost(routing: str, batch_size: int) -> dict[str, float]:
    """Time and memory of a training step on overlapping digits, and the time of votes and routing without kernels."""
    torch.manual_seed(0)
    model = create_model("capsnet-multimnist-small", routing=routing).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert isinstance(model, CapsNet)
    images = torch.rand(batch_size, *model.config.image)
    labels = torch.rand(batch_size, model.config.classes).argsort(1)[:, :2]
    batch = Batch(images, labels, images[:, None].repeat(1, 2, 1, 1, 1))
    with torch.no_grad():
        children = model.features(images)

    def step() -> None:
        model.zero_grad()
        model.loss(model(batch.images, batch.labels), batch)["total"].backward()

    def routing_alone() -> None:
        model.zero_grad()
        output = model.classes.routing(votes(children.poses, model.classes.weight), children)
        (output.poses.sum() + output.activations.sum()).backward()

    times = {"step_ms": _milliseconds(step), "routing_ms": _milliseconds(routing_alone)}
    model.zero_grad()
    workspace.clear()
    return {"parameters": count_parameters(model), **times, "step_mb": peak_bytes(step) / 2**20}


def _milliseconds(work: Callable[[], None]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def _measure(study: Study, groups: dict[str, list[Trial]], which: tuple[int, str]) -> dict[str, dict[str, float]]:
    """The measurements of one seed and one routing, by test set."""
    seed, routing = which
    sets = _sets(study)
    trials = {task: groups[f"{routing}-{task}"][seed] for task in ("translated", "multimnist")}
    pairs = 100 if study.preset == "smoke" else TEST_PAIRS
    asked: dict[str, tuple[Trial, Callable[[], ScoredSet]]] = {
        "mnist": (trials["translated"], lambda: centred(sets["mnist"])),
        "affnist": (trials["translated"], lambda: data.load_test_set(sets["affnist"])),
        "multimnist": (trials["multimnist"], lambda: data.load_test_set(sets["multimnist"], pairs)),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (trial, load) in asked.items():
        result = study.train(trial)

        def compute(trial: Trial = trial, load: Callable[[], ScoredSet] = load) -> dict[str, float]:
            model = study.model(trial)
            assert isinstance(model, CapsNet)
            return inspect(model, load())

        weights = result["weights_sha256"]
        values = study.row(f"{routing}-{name}-{seed}-inspected", compute, seed, weights=weights, data=sets[name])
        found[name] = values | {"steps": result["steps"]}
    return found


Table = dict[str, dict[str, Any]]


def tabulate(measured: dict[str, list[dict[str, dict[str, float]]]], costs: dict[str, dict[str, float]]) -> Table:
    """For each routing its costs, and for each test set the mean, spread and values by seed of every measure."""
    table: Table = {}
    for routing, seeds in measured.items():
        row: dict[str, Any] = {"cost": costs[routing]}
        for asked in seeds[0]:
            row[asked] = {}
            for measure in seeds[0][asked]:
                values = [seed[asked][measure] for seed in seeds]
                mean, spread = mean_and_spread(values)
                row[asked][measure] = {"mean": mean, "spread": spread, "values": values}
        table[routing] = row
    return table


def run(study: Study) -> list[Verdict]:
    seeds, sets, names = study.seeds_or(SEEDS[study.preset]), _sets(study), _routings(study)
    groups, steps = search.tuned(study, _groups(study)), STEPS.get(study.preset)
    batch = 8 if study.preset == "smoke" else 128
    # Seed by seed, so that a run that is stopped early still compares all routings.
    which = [(seed, name) for seed in seeds for name in names]
    study.at_once(partial(_measure, study, groups), which)
    found = {pair: _measure(study, groups, pair) for pair in which}
    networks = {name: asdict(configure("capsnet-multimnist-small", routing=name)) for name in names}
    costs = {
        name: study.row(f"{name}-cost", lambda name=name: cost(name, batch), batch=batch, network=networks[name])
        for name in names
    }
    table = tabulate({name: [found[seed, name] for seed in seeds] for name in names}, costs)
    trained = {name: [study.train(trial) for trial in group] for name, group in groups.items()}
    weights = [result["weights_sha256"] for group in trained.values() for result in group]
    rates = {name: group[0].config.lr for name, group in groups.items()}
    study.row("table", lambda: table, steps=steps, sets=sets, weights=weights, costs=costs, rates=rates)
    errors = {
        sets[asked]: [Measured(name, [1 - x for x in row[asked]["accuracy"]["values"]]) for name, row in table.items()]
        for asked in ("mnist", "multimnist", "affnist")
    }
    with style():
        study.figure("routings", dots(errors, "error"))
    return [
        compared(
            f"{name} is better than {CONTROL} couplings on {sets[asked]}, by",
            row[asked]["accuracy"]["values"],
            table[CONTROL][asked]["accuracy"]["values"],
            None,
            f"{row[asked]['accuracy']['mean']:.2%}; evened out after training it gives "
            f"{row[asked]['accuracy_evenly']['mean']:.2%}",
        )
        for asked in ("multimnist", "affnist")
        for name, row in table.items()
        if name != CONTROL
    ]
