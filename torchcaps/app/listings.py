"""What there is by name, without importing torch: models, routings, data sets, and how a training is set by default.

The tables hold classes that need torch, and importing torch takes seconds. Commands that only list read
`listings.json`, which `python tools/listings.py` writes from the tables; a test fails when it is out of date. What a
program has registered besides is added.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("listings.json")
TRAINING = ("optimiser", "lr", "muon_factor", "schedule", "warmup", "batch")
"""What a model's own training may set."""

Row = dict[str, Any]


@cache
def kept() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def made() -> dict[str, Any]:
    """What the file should hold, from the tables themselves."""
    from torchcaps.training.config import TrainConfig

    named = (*TRAINING, "seed", "average", "validation", "checkpoint_seconds", "test_pairs")
    training = {name: getattr(TrainConfig("", ""), name) for name in named}
    tables = {kind: (getattr(import_module(module), table), row) for kind, (module, table, row) in TABLES.items()}
    return {"training": training} | {kind: [row(name) for name in table] for kind, (table, row) in tables.items()}


def rows(kind: str) -> list[Row]:
    """Of "models", "routings" or "data": those of the file, and what a program has registered besides."""
    found = kept()[kind]
    module, table, made_of = TABLES[kind]
    if module not in sys.modules:
        return found
    known = {row["name"] for row in found}
    return [*found, *(made_of(name) for name in getattr(sys.modules[module], table) if name not in known)]


def names(kind: str) -> list[str]:
    return [row["name"] for row in rows(kind)]


def _model(name: str) -> Row:
    """Counted on the meta device, where tensors have sizes and no numbers."""
    import torch

    from torchcaps.models.pretrained import PRETRAINED
    from torchcaps.models.registry import MODELS, count_parameters, create_model

    entry = MODELS[name]
    scores = PRETRAINED[name]["scores"] if name in PRETRAINED else {}
    with torch.device("meta"):
        parameters = count_parameters(create_model(name))
    return {
        "name": name,
        "parameters": parameters,
        "pretrained": name in PRETRAINED,
        "accuracy": next((score["accuracy"] for score in scores.values()), None),
        "data": entry.data,
        "about": entry.about,
        "sizes_itself": entry.fits_any,
        "training": {key: value for key, value in entry.training.items() if key in TRAINING},
    }


def _routing(name: str) -> Row:
    """Its file says what it does in the first line, and whose it is in what follows."""
    from torchcaps.routing import ROUTINGS, options_of

    routing = ROUTINGS[name]
    text = inspect.getdoc(sys.modules[routing.__module__]) or ""
    parameters = inspect.signature(routing).parameters
    return {
        "name": name,
        "paper": citation(text),
        "about": " ".join(text.partition("\n\n")[0].split()),
        "options": {option: parameters[option].default for option in options_of(name)},
    }


def citation(text: str) -> str:
    """Authors, title, venue and year of the first paper that a docstring names.

    >>> citation('Routing by luck. After Tyche and Moira, "On dice", Olympia 2020, Eq. 3:')
    'Tyche and Moira, "On dice", Olympia 2020'
    """
    found = re.search(r'(?:After )?([A-Z][^."()=\[\]]*), "([^"]+)", ([^."]*?\d{4})', " ".join(text.split()))
    return '{}, "{}", {}'.format(*found.groups()) if found else ""


def _data(name: str) -> Row:
    from torchcaps.data import DATA

    spec = DATA[name]
    return {"name": name, "image": list(spec.image), "classes": len(spec.classes), "about": spec.about}


TABLES: dict[str, tuple[str, str, Callable[[str], Row]]] = {
    "models": ("torchcaps.models.registry", "MODELS", _model),
    "routings": ("torchcaps.routing", "ROUTINGS", _routing),
    "data": ("torchcaps.data", "DATA", _data),
}
"""Where each is, and what makes a row of one of its names."""
