"""What there is by name, without importing torch: models, routings, data sets, and how a training is set by default.

The tables hold classes that need torch, and importing torch takes seconds. Commands that only list read
`listings.json`, which `python tools/listings.py` writes from the tables; a test fails when it is out of date. What a
program has registered besides is added.
"""

import inspect
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("listings.json")
TRAINING = ("optimiser", "lr", "schedule", "warmup", "batch")
"""What a model's own training may set."""

Row = dict[str, Any]


@cache
def kept() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def made() -> dict[str, Any]:
    """What the file should hold, from the tables themselves."""
    from torchcaps.data import DATA
    from torchcaps.models.registry import MODELS
    from torchcaps.routing import ROUTINGS
    from torchcaps.training.config import TrainConfig

    named = (*TRAINING, "seed", "average", "validation", "checkpoint_seconds", "test_pairs")
    return {
        "training": {name: getattr(TrainConfig("", ""), name) for name in named},
        "models": [_model(name) for name in MODELS],
        "routings": [_routing(name) for name in ROUTINGS],
        "data": [_data(name) for name in DATA],
    }


def models() -> list[Row]:
    rows = kept()["models"]
    if "torchcaps.models.registry" not in sys.modules:
        return rows
    from torchcaps.models.registry import MODELS

    return [*rows, *(_model(name) for name in _others(MODELS, rows))]


def routings() -> list[Row]:
    rows = kept()["routings"]
    if "torchcaps.routing" not in sys.modules:
        return rows
    from torchcaps.routing import ROUTINGS

    return [*rows, *(_routing(name) for name in _others(ROUTINGS, rows))]


def data() -> list[Row]:
    rows = kept()["data"]
    if "torchcaps.data" not in sys.modules:
        return rows
    from torchcaps.data import DATA

    return [*rows, *(_data(name) for name in _others(DATA, rows))]


def _others(table: dict[str, Any], rows: list[Row]) -> list[str]:
    known = {row["name"] for row in rows}
    return [name for name in table if name not in known]


def _model(name: str) -> Row:
    """Counted on the meta device, where tensors have sizes and no numbers."""
    import torch

    from torchcaps.models.pretrained import PRETRAINED
    from torchcaps.models.registry import MODELS, count_parameters, create_model

    entry = MODELS[name]
    with torch.device("meta"):
        parameters = count_parameters(create_model(name))
    return {
        "name": name,
        "parameters": parameters,
        "pretrained": name in PRETRAINED,
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
