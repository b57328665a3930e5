"""Which results are older than the code that they describe.

A result names the fingerprint of its code (see `fingerprint.py`); it is stale if that code has another one today. One
that names none is from an earlier version, and stale too.
"""

from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json
from torchcaps.experiments import EXPERIMENTS
from torchcaps.experiments.base import Trial
from torchcaps.experiments.fingerprint import of_measurement, of_training


class Stale(NamedTuple):
    """A result, and how many of its parts are older than their code."""

    result: str
    stale: int
    parts: int
    commits: list[str]


def is_fresh(row: dict[str, Any], experiment: str | None = None) -> bool:
    """Whether the code of a training, or of a measurement of an experiment, is still the one that it names."""
    code = row.get("code")
    return code is not None and code == _code_today(row, experiment)


def _code_today(row: dict[str, Any], experiment: str | None) -> str | None:
    """None where what was trained is not there any more."""
    trial = row.get("configuration", {}).get("trial")
    try:
        if trial is not None:
            names = ("name", "model", "data", "seed", "overrides", "training", "loss")
            return Trial(**{name: _with_tuples(trial[name]) for name in names if name in trial}).code
        return of_measurement(experiment) if experiment else of_training(row["model"], row["data"])
    except (AttributeError, ImportError, UserError):
        return None


def _with_tuples(value: Any) -> Any:
    """JSON has no tuples, and the fields of a network have no lists."""
    if isinstance(value, dict):
        return {name: _with_tuples(part) for name, part in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def stale_results(results: Path) -> list[Stale]:
    """Of the experiments in `results/NAME/PRESET/`, and of the trainings in `results/*.json`."""
    found = []
    for path in sorted(results.glob("*/*/rows.json")):
        name = path.parts[-3]
        if name not in EXPERIMENTS:
            continue
        rows = read_json(path)["rows"].values()
        old = [row for row in rows if not is_fresh(row, name)]
        found += [_stale(f"{name}/{path.parts[-2]}", old, len(rows))] if old else []
    for path in sorted(results.glob("*.json")):
        result = read_json(path)
        if {"model", "data"} <= result.keys() and not is_fresh(result):
            found.append(_stale(path.name, [result], 1))
    return found


def _stale(name: str, rows: list[dict[str, Any]], parts: int) -> Stale:
    return Stale(name, len(rows), parts, sorted({row["commit"] or "no commit" for row in rows}))
