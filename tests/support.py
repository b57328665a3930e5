"""Small things that several tests need."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
from torch import Tensor

from torchcaps.core.types import Capsules


def children_of(votes: Tensor, activations: Tensor | None = None) -> Capsules:
    """Children for votes that come from nowhere: poses of one zero, fully active unless told otherwise."""
    b, i = votes.shape[:2]
    return Capsules(votes.new_zeros(b, i, 1), votes.new_ones(b, i) if activations is None else activations)


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
