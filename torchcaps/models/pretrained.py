"""Weights inside the package: safetensors in half precision, each with its hash, its result and how it was trained."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.core.errors import UserError
from torchcaps.core.files import read_tensors

FOLDER = Path(__file__).parent / "weights"


def _cards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


PRETRAINED = _cards()


HEAD = ("classes.", "decoder.")
"""Modules whose sizes follow the number of classes."""


def load_pretrained(name: str, model: nn.Module) -> None:
    """The weights of that name. For another number of classes, what depends on it stays as it begins."""
    if name not in PRETRAINED:
        raise UserError(f"there are no weights for '{name}' in the package; there are for {', '.join(PRETRAINED)}")
    kept = read_tensors(FOLDER / f"{name}.safetensors", PRETRAINED[name]["sha256"])
    weights = {key: value.float() if value.dtype == torch.float16 else value for key, value in kept.items()}
    own = model.state_dict()
    other = sorted(key for key in own.keys() | weights.keys() if _shape(own, key) != _shape(weights, key))
    if wrong := [key for key in other if not key.startswith(HEAD)]:
        shapes = f"{_shape(weights, wrong[0])} instead of {_shape(own, wrong[0])}"
        raise UserError(f"the weights of '{name}' do not fit this network: {wrong[0]} has {shapes}")
    model.load_state_dict({**own, **{key: value for key, value in weights.items() if key not in other}})


def _shape(tensors: dict[str, torch.Tensor], key: str) -> list[int] | None:
    return list(tensors[key].shape) if key in tensors else None
