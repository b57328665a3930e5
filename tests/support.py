"""Small things that several tests need."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jaxtyping
import torch
from torch import Tensor

from torchcaps.core.types import Capsules
from torchcaps.models.registry import build, configure
from torchcaps.training.forecast import Forecast, measure


def children_of(votes: Tensor, activations: Tensor | None = None) -> Capsules:
    """Children for votes that come from nowhere: poses of one zero, fully active unless told otherwise."""
    b, i = votes.shape[:2]
    return Capsules(votes.new_zeros(b, i, 1), votes.new_ones(b, i) if activations is None else activations)


def forecast(model: str, batch: int, images: int, overrides: Mapping[str, Any] | None = None, **given: Any) -> Forecast:
    """Of a model by its name."""
    config = configure(model, **(overrides or {}))
    return measure(model, build(config).to(memory_format=torch.channels_last), config, batch, images, **given)


@contextmanager
def as_installed() -> Iterator[None]:
    """Without the type checks of the tests: what a user's wrong argument meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def build_wheel(folder: Path, **environment: str) -> Path:
    """The package as a wheel, built without a network by what the environment of the tests has."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(Path(__file__).parents[1])]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=os.environ | environment)
    (wheel,) = folder.glob("*.whl")
    return wheel
