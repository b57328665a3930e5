"""The same small search for every network: three learning rates, a short training each, scored on held-out images.

A network that was made for one rate is not compared with one that has to make do with the other's. The test images
take no part: the trainings of the search leave `HELD_OUT` training images out and are scored on these. Their seed is
used for nothing else. Only the preset `standard` searches; the others train with the rate that suits the model.

    groups = {"CapsNet": [...], "CNN": [...]}       the trials of each network, which differ in their seeds alone
    planned(study, groups)                          for `plan`: the trainings of the search, then these
    tuned(study, groups)                            for `run`: searches, and returns the groups with their best rates
    tuned_alike(study, groups)                      the same, with one rate for all: the one that is best on average
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from torchcaps.core.errors import UserError
from torchcaps.data import resolve
from torchcaps.experiments.base import Study, Trial
from torchcaps.training.scoring import score

FACTORS = (1 / 3, 1.0, 3.0)
SEED = 100
SHORTER = 10
FEWEST_STEPS = 200
HELD_OUT = 5000

Groups = Mapping[str, Sequence[Trial]]


@dataclass(frozen=True)
class Variant:
    """Something else that is tried for a network besides its rates, such as another width.

    `cost` is what a step costs in relation to the network without it: its budget is divided by it.
    """

    name: str
    overrides: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    cost: float = 1.0

    def of(self, trial: Trial) -> Trial:
        steps = round(trial.training["steps"] / self.cost)
        training = {**trial.training, **self.training, "steps": steps}
        return replace(trial, overrides={**trial.overrides, **self.overrides}, training=training)


Variants = Mapping[str, Sequence[Variant]]


def planned(study: Study, groups: Groups, variants: Variants | None = None) -> list[Trial]:
    """Seed by seed, so that a run that is stopped early still compares all networks."""
    search = [trial for group in _candidates(study, groups, variants).values() for _, trial in group]
    return search + by_seed(groups)


def by_seed(groups: Groups) -> list[Trial]:
    """All trials of seed 0, then all of seed 1 ..."""
    return [trial for row in zip_longest(*groups.values()) for trial in row if trial is not None]


def tuned(study: Study, groups: Groups, variants: Variants | None = None) -> dict[str, list[Trial]]:
    tried = _candidates(study, groups, variants)
    study.at_once(partial(_held_out_accuracy, study), [trial for group in tried.values() for _, trial in group])
    return {name: [_best(study, tried[name], trial) for trial in group] for name, group in groups.items()}


def tuned_alike(study: Study, groups: Groups) -> dict[str, list[Trial]]:
    """One rate for all, the best on average: training curves are compared at equal rates. For networks of one model."""
    tried = _candidates(study, groups, None)
    study.at_once(partial(_held_out_accuracy, study), [trial for group in tried.values() for _, trial in group])
    rates = [
        (sum(_held_out_accuracy(study, trial) for _, trial in same), same[0][0])
        for same in zip(*tried.values(), strict=True)
    ]
    if not rates:
        return {name: list(group) for name, group in groups.items()}
    _, best = max(rates, key=lambda rate: rate[0])
    return {name: [best.of(trial) for trial in group] for name, group in groups.items()}


def _candidates(study: Study, groups: Groups, variants: Variants | None) -> dict[str, list[tuple[Variant, Trial]]]:
    """For each group what is tried, and the short training that tries it."""
    if study.preset != "standard":
        return {name: [] for name in groups}
    found: dict[str, list[tuple[Variant, Trial]]] = {}
    for name, (first, *_) in groups.items():
        rates = [_rounded(first.config.lr * factor) for factor in FACTORS]
        choices = [Variant(f"{rate:g}", training={"lr": rate}) for rate in rates]
        found[name] = [(choice, _short(first, choice)) for choice in (*choices, *(variants or {}).get(name, ()))]
    return found


def _short(trial: Trial, choice: Variant) -> Trial:
    whole = choice.of(trial)
    steps = max(FEWEST_STEPS, whole.training["steps"] // SHORTER)
    name = f"search-{trial.name.removesuffix(f'-{trial.seed}')}-{choice.name}"
    return replace(whole, name=name, seed=SEED, training={**whole.training, "steps": steps, "validation": HELD_OUT})


def _best(study: Study, tried: Sequence[tuple[Variant, Trial]], trial: Trial) -> Trial:
    if not tried:
        return trial
    best, _ = max(tried, key=lambda pair: _held_out_accuracy(study, pair[1]))
    return best.of(trial)


def _held_out_accuracy(study: Study, trial: Trial) -> float:
    """Of the short training; one that came to no end, because its rate was too high, has found nothing."""

    def compute() -> dict[str, Any]:
        known = resolve(trial.data)
        _, kept = known.training_and_validation(HELD_OUT)
        try:
            model = study.model(trial)
        except UserError as error:
            if not (study.run_folder(trial) / "manifest.json").exists():
                raise
            return {"accuracy": 0.0, "failed": str(error)}
        return {"accuracy": score(model, known.scored(kept, len(kept)))["accuracy"]}

    return study.row(f"{trial.name}-held-out", compute, SEED, trial.code, trial=trial.resolved())["accuracy"]


def _rounded(rate: float) -> float:
    """Two digits, so that a name is short.

    >>> _rounded(0.01 / 3)
    0.0033
    """
    return float(f"{rate:.2g}")
