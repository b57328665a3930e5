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


def load_pretrained(name: str, model: nn.Module) -> None:
    if name not in PRETRAINED:
        raise UserError(f"there are no weights for '{name}' in the package; there are for {', '.join(PRETRAINED)}")
    weights = read_tensors(FOLDER / f"{name}.safetensors", PRETRAINED[name]["sha256"])
    model.load_state_dict(
        {key: value.float() if value.dtype == torch.float16 else value for key, value in weights.items()}
    )
