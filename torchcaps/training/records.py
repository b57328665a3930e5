"""The JSON and CSV files of a run, read with care: a field that is missing or of another kind is one clear line.

A run folder may come from somebody else, from an older version, or from a disk that is failing.
"""

import csv
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcaps.core.errors import UserError
from torchcaps.core.files import is_kind, read_record
from torchcaps.training.config import config_from

Rows = list[dict[str, Any]]

_RESULT = {
    **dict.fromkeys(("model", "data", "weights_sha256"), str),
    **dict.fromkeys(("images", "steps", "seed", "parameters", "images_seen"), int),
    **dict.fromkeys(("accuracy", "seconds"), float),
}
_ALSO = {
    **dict.fromkeys(("at_least_one", "per_digit", "reconstruction_mse", "segmentation_iou"), float),
    **dict.fromkeys(("metric", "selection", "answers_sha256"), str),
}
_STATE = {"file": str, "sha256": str, "step": int}
_PLACE = {"seconds": float, "rows": list, "kernels": dict, "sums": dict, "summed": int}
_MANIFEST = {"command": str, "seed": int, "versions": dict, "machine": dict, "data": dict, "continued": list}


def read_config(run: Path) -> dict[str, Any]:
    """What a run was begun with: `train`, `model` and `classes`."""
    path = run / "config.json"
    config = read_record(path)
    if "train" not in config:
        raise UserError(f"{run} is a saved model, not a run folder: from_pretrained reads it in Python")
    read_record(path, {"train": dict, "model": dict}, {"classes": list})
    config_from(config["train"], path)
    if not all(isinstance(name, str) for name in config.get("classes", [])):
        raise UserError(f"{path} is damaged: its classes are not all names")
    return config


def read_result(run: Path) -> dict[str, Any]:
    """The scores of a finished run."""
    path = run / "result.json"
    result = read_record(path, _RESULT, _ALSO)
    if not 0 <= result["accuracy"] <= 1 or result["images"] < 1:
        raise UserError(f"{path} is damaged: {result['accuracy']} of {result['images']} images cannot be right")
    return result


def read_manifest(run: Path) -> dict[str, Any]:
    path = run / "manifest.json"
    found = read_record(path, also=_MANIFEST)
    if not all(isinstance(command, str) for command in found.get("continued", [])):
        raise UserError(f"{path} is damaged: what it says under 'continued' are not all commands")
    return found


def read_metrics(run: Path) -> Rows:
    """What was logged; a value that a step does not have is missing from its row."""
    path = run / "metrics.csv"
    try:
        lines = path.read_bytes().decode().splitlines()
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(lines)]
    except (OSError, ValueError, TypeError, AttributeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0][:200]
        raise UserError(f"{path} cannot be read: {why}") from None
    if any("step" not in row or row["step"] < 0 for row in rows):
        raise UserError(f"{path} is damaged: a row has no step")
    return rows


def checked(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state with a hash of its own: a bit that flips in a number leaves JSON as valid as before."""
    return {**state, "check": _digest(state)}


def _digest(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def read_state(pointer: Path) -> dict[str, Any]:
    """What a checkpoint has besides its tensors."""
    state = read_record(pointer, _STATE, _PLACE)
    check = state.pop("check", None)  # older versions wrote none
    rows, sums = state.get("rows") or [], state.get("sums") or {}
    numbers = [sums, *(row for row in rows if isinstance(row, dict))]
    whole = check in (None, _digest(state))
    whole &= all(isinstance(row, dict) and "step" in row for row in rows)
    whole &= all(is_kind(value, float) for part in numbers for value in part.values())
    whole &= all(isinstance(name, str) for name in (state.get("kernels") or {}).values())
    if not whole or min(state["step"], state.get("seconds") or 0, state.get("summed") or 0) < 0:
        raise UserError(f"{pointer} is damaged: it is not what was saved")
    return state


def loaded(path: Path, tensors: Mapping[str, Any], names: tuple[str, ...]) -> list[Any]:
    """Tensors of a file, by their names."""
    missing = [name for name in names if name not in tensors]
    if missing:
        raise UserError(f"{path} is damaged: it has no {missing[0]}")
    return [tensors[name] for name in names]
