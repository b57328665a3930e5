"""Do capsules take overlapping digits apart better than what lacks some part of them?

The capsule network against the same with one iteration of routing, with couplings that are all equal, with a CNN of the
same backbone and cost, and with the paper's CNN. `quick` is the budget that a laptop has, `LAPTOP` seconds of two quiet
cores, on pairs whose ink boxes overlap by IoU >= 0.8; `paper` is the long training, on the paper's pairs. Budgets are
the numbers of steps that were counted in that time on a quiet machine: a result does not depend on how busy it was.

In `standard` the capsules and the CNN of their backbone have the learning rates that the same small search finds for
them; capsules that differ in their routing alone have the rate of the capsules.

Each seed gives all networks the same pairs in the same order. What decides is the paired t-test over seeds, corrected
for the number of claims; McNemar's test on the shared test pairs is given for each seed beside it.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from torchcaps import data
from torchcaps.analysis.corruptions import robustness
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.statistics import adjusted, difference, mcnemar
from torchcaps.experiments.verdicts import Verdict, compared, judged, mean_and_spread
from torchcaps.training.runs import read_answers
from torchcaps.training.scoring import exact_match
from torchcaps.viz.figures import Interval, Measured, dots, intervals, style

PAPER = "Sabour, Frosst and Hinton 2017, section 6 and Table 1; Paik, Kwak and Kim 2019"
_CUT = "395 s of two quiet cores instead of 45 minutes, five seeds; pairs whose ink boxes overlap by IoU >= 0.8"
CUT = {"quick": _CUT, "standard": _CUT}
DECIDES = ("quick", "standard", "paper")
LAPTOP, LONG = 395, 2700
"""Seconds of two quiet cores that the steps below stand for."""
ROBUST_PAIRS = 2000


@dataclass(frozen=True, eq=False)
class Network:
    """A network, and how many steps of it fit into the two budgets."""

    name: str
    title: str
    model: str
    steps: dict[str, int]
    overrides: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    """Fields of `TrainConfig` other than those that suit the model."""
    cut: str = ""
    """Why its budget decides nothing."""


# A step of the capsules takes 29.0 ms of two quiet cores (AMD EPYC with AVX-512), of the CNN 25.3; the start and the
# validation take some seconds more. What differs in the routing alone gets equal steps.
CAPSULE_STEPS = {"quick": 13400, "standard": 13400, "paper": 92000}
CAPSULES = Network("capsules", "capsules, 3 iterations", "capsnet-multimnist-fine", CAPSULE_STEPS)
CONTROLS = (
    Network(
        "cnn", "CNN of the same backbone", "cnn-multimnist-fine", {"quick": 15300, "standard": 15300, "paper": 105000}
    ),
    Network(
        "one-iteration",
        "capsules, 1 iteration",
        "capsnet-multimnist-fine",
        CAPSULE_STEPS,
        {"routing_options": {"iterations": 1}},
    ),
    Network("uniform", "capsules, equal couplings", "capsnet-multimnist-fine", CAPSULE_STEPS, {"routing": "uniform"}),
    # It sees a hundredth of the pairs, or a twentieth, in the same time. Small batches give it more steps.
    Network(
        "paper-cnn",
        "the paper's CNN",
        "cnn-multimnist",
        {"quick": 176, "standard": 176, "paper": 2000},
        training={"optimiser": "muon", "lr": 3e-3, "schedule": "linear", "warmup": 0.05, "batch": 32},
        cut="176 steps were 395 s of an older processor and are a fifth of that on this one; 880 steps are needed",
    ),
)
NETWORKS = (CAPSULES, *CONTROLS)


def _controls(study: Study) -> tuple[Network, ...]:
    """The paper's CNN is too large to see in seconds that everything runs."""
    return CONTROLS[:-1] if study.preset == "smoke" else CONTROLS


def _data(study: Study) -> str:
    return study.pick(
        quick="multimnist-iou80", standard="multimnist-iou80", paper="multimnist", smoke="multimnist-mini"
    )


def _trials(study: Study, network: Network) -> list[Trial]:
    seeds = study.seeds_or(study.pick(quick=5, standard=5, paper=3, smoke=1))
    if study.preset == "smoke":
        training: dict[str, Any] = {**network.training, **protocols.SMOKE}
    else:
        training = {**network.training, "steps": network.steps[study.preset]}
    return [
        Trial(f"{network.name}-{seed}", network.model, _data(study), seed, network.overrides, training)
        for seed in seeds
    ]


def _searched(study: Study) -> dict[str, list[Trial]]:
    """Those that have a rate of their own."""
    return {network.name: _trials(study, network) for network in (CAPSULES, CONTROLS[0])}


def plan(study: Study) -> list[Trial]:
    """One network after the other: a run that is stopped early has the most important of them with all seeds."""
    searched = _searched(study)
    tried = search.planned(study, searched)[: -len(search.by_seed(searched))]
    return [*tried, *(trial for network in (CAPSULES, *_controls(study)) for trial in _trials(study, network))]


def _tuned(study: Study) -> dict[Network, list[Trial]]:
    """With their learning rates."""
    found = search.tuned(study, _searched(study))
    rates = {name: trials[0].config.lr for name, trials in found.items()}
    rates |= {network.name: rates[CAPSULES.name] for network in NETWORKS if network.model == CAPSULES.model}
    return {
        network: [_at(trial, rates.get(network.name)) for trial in _trials(study, network)]
        for network in (CAPSULES, *_controls(study))
    }


def _at(trial: Trial, rate: float | None) -> Trial:
    """With this rate, where it is another than the usual one."""
    if rate is None or rate == trial.config.lr:
        return trial
    return replace(trial, training={**trial.training, "lr": rate})


def right_answers(study: Study, trial: Trial) -> list[bool]:
    """Which of the shared test pairs a network got right; kept in hexadecimal, a bit for each pair."""

    def compute() -> dict[str, Any]:
        study.train(trial, weights=True)
        answers = read_answers(study.run_folder(trial))
        assert answers is not None
        right = exact_match(*answers)
        return {"pairs": len(right), "right": np.packbits(right.numpy()).tobytes().hex()}

    weights = study.train(trial)["weights_sha256"]
    kept = study.row(f"{trial.name}-right", compute, trial.seed, weights=weights)
    bits = np.frombuffer(bytes.fromhex(kept["right"]), np.uint8)
    return np.unpackbits(bits, count=kept["pairs"]).astype(bool).tolist()


def _finish(study: Study, trial: Trial) -> None:
    """Train, and measure at once all that takes the trained network: another machine will not have it."""
    study.train(trial)
    if not (study.run_folder(trial) / "result.json").exists():
        return
    right_answers(study, trial)
    if trial.seed == 0:
        _corruptions(study, trial)


def run(study: Study) -> list[Verdict]:
    trials = _tuned(study)
    study.at_once(partial(_finish, study), [trial for group in trials.values() for trial in group])
    networks, controls = tuple(trials), tuple(trials)[1:]
    results = {network: [study.train(trial) for trial in group] for network, group in trials.items()}
    accuracy = {network: [result["accuracy"] for result in found] for network, found in results.items()}
    weights = {network: [result["weights_sha256"] for result in found] for network, found in results.items()}
    estimates = adjusted([difference(accuracy[CAPSULES], accuracy[control]) for control in controls])
    pairs = {
        control.name: study.row(
            f"{control.name}-mcnemar",
            lambda control=control: _by_seed(study, trials[CAPSULES], trials[control]),
            weights=[*weights[CAPSULES], *weights[control]],
        )
        for control in controls
    }
    study.row(
        "estimates",
        lambda: {c.name: asdict(e) for c, e in zip(controls, estimates, strict=True)},
        weights=[one for found in weights.values() for one in found],
    )
    with style():
        near = [Measured(network.title, accuracy[network]) for network in networks if not network.cut]
        far = [Measured(network.title, accuracy[network]) for network in networks if network.cut]
        panels = {"both digits right, IoU of at least 0.8": near, "with a shorter training": far}
        study.figure(
            "accuracy", dots({title: rows for title, rows in panels.items() if rows}, "accuracy on test pairs")
        )
        pairs_shown = zip(controls, estimates, strict=True)
        shown = [Interval(c.title, e.mean, e.low, e.high) for c, e in pairs_shown if not c.cut]
        label = "points that capsules with 3 iterations are ahead (95 % interval)"
        study.figure("differences", intervals(shown, label))
    claims = [_claim(control, accuracy, pairs[control.name]) for control in controls]
    return [*(_measured(network, results[network]) for network in networks), *claims, *_robust(study, trials, results)]


def _by_seed(study: Study, capsules: list[Trial], control: list[Trial]) -> list[dict[str, Any]]:
    """McNemar's test for each seed: both networks on the same test pairs."""
    both = zip(capsules, control, strict=True)
    return [asdict(mcnemar(*(right_answers(study, trial) for trial in pair))) for pair in both]


def _measured(network: Network, results: list[dict[str, Any]]) -> Verdict:
    seconds, _ = mean_and_spread([result["seconds"] for result in results])
    note = (
        f"{results[0]['parameters']:,} parameters, {results[0]['steps']:,} steps, {seconds:,.0f} s as the machine was"
    )
    return judged(f"both digits right: {network.title}", [r["accuracy"] for r in results], None, False, note)


def _claim(control: Network, accuracy: dict[Network, list[float]], tests: list[dict[str, Any]]) -> Verdict:
    decided = [test for test in tests if test["p"] <= 0.05]
    ahead = sum(test["mean"] > 0 for test in decided)
    note = f"by McNemar ahead in {ahead}, behind in {len(decided) - ahead} of {len(tests)} seeds"
    claim = f"better than {control.title}, by"
    return compared(claim, accuracy[CAPSULES], accuracy[control], None, note, cut=control.cut)


def _robust(
    study: Study, trials: dict[Network, list[Trial]], results: dict[Network, list[dict[str, Any]]]
) -> list[Verdict]:
    """What is lost on spoilt images, of the first seed's networks."""
    verdicts = []
    for network in results:
        table = _corruptions(study, trials[network][0])
        lost = {name: row["lost"] for name, row in table["corruptions"].items()}
        worst = max(lost, key=lambda name: lost[name])
        note = f"the most by {worst}: {100 * lost[worst]:.1f} points; seed 0, {_robust_pairs(study):,} pairs"
        verdicts.append(
            judged(
                f"lost on spoilt images, mean of {len(lost)} kinds: {network.title}", [_mean(lost)], None, True, note
            )
        )
    return verdicts


def _corruptions(study: Study, trial: Trial) -> dict[str, Any]:
    """Accuracy on spoilt images."""
    name, count = trial.name.rpartition("-")[0], _robust_pairs(study)
    weights = study.train(trial)["weights_sha256"]
    return study.row(
        f"{name}-corruptions",
        lambda: robustness(study.model(trial), data.load_test_set(_data(study), count)),
        weights=weights,
        pairs=count,
    )


def _robust_pairs(study: Study) -> int:
    return 20 if study.preset == "smoke" else ROBUST_PAIRS


def _mean(values: dict[str, float]) -> float:
    return float(torch.tensor(list(values.values()), dtype=torch.float64).mean())
