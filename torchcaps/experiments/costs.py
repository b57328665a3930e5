"""What a plan costs, from processor time that was measured once for every network in it.

`costs.json` is written by `python tools/costs.py`: milliseconds of one thread for each training image. Two trainings
at a time (`--jobs 2`) keep two cores busy, so that a plan takes half the sum.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

from torchcaps.core.files import read_json
from torchcaps.experiments.base import Trial
from torchcaps.kernels.processor_time import one_thread, spent
from torchcaps.models.registry import create_model
from torchcaps.training.forecast import random_batch
from torchcaps.training.loop import train_step
from torchcaps.training.optim import make_optimisers

FILE = Path(__file__).with_name("costs.json")
CORES = 2
GPU = 30
"""How many times as fast as two cores a GPU of 10 TFLOP/s is: these reach 0.35 TFLOP/s. Computed, not measured."""
EPOCH = 60_000
EPOCHS = {"mnist-mini": 5_000, "cifar10": 50_000, "svhn": 73_257, "smallnorb": 24_300, "norb-style": 24_300,
          "faces": 6_000, "ships": 6_000, "eth80": 3_280}  # fmt: skip
"""Training images of the sets that do not have `EPOCH`."""
WARM, TIMED, MOST = 2, 3, 32


class Cost(TypedDict):
    steps: int
    images: int
    hours: float | None
    """Of two cores; None where the network was not measured."""


def images_in(trial: Trial) -> int:
    """In an epoch."""
    config = trial.config
    whole = next((count for name, count in EPOCHS.items() if trial.data.startswith(name)), EPOCH)
    if config.per_class is not None:
        return 10 * config.per_class
    return config.pairs or whole - config.validation


def key(trial: Trial) -> str:
    """What the time of a step depends on."""
    overrides = {name: value for name, value in sorted(trial.overrides.items()) if name != "reconstruction_weight"}
    return f"{trial.model} {json.dumps(overrides, sort_keys=True)} {trial.config.optimiser}"


def cost(trial: Trial) -> Cost:
    steps = trial.config.total_steps(images_in(trial)) or 0
    images, known = steps * trial.config.batch, measured().get(key(trial))
    return {"steps": steps, "images": images, "hours": known and images * known / 1000 / CORES / 3600}


def total(trials: Sequence[Trial]) -> Cost:
    costs = [cost(trial) for trial in trials]
    hours = [one["hours"] for one in costs if one["hours"] is not None]
    return {
        "steps": sum(one["steps"] for one in costs),
        "images": sum(one["images"] for one in costs),
        "hours": sum(hours) if len(hours) == len(costs) else None,
    }


def measured() -> dict[str, float]:
    return read_json(FILE)["milliseconds"] if FILE.exists() else {}


def measure(trial: Trial) -> float:
    """Milliseconds of one thread for a training image; processor time, which a busy machine leaves alone."""
    config: Any = trial.config
    size = min(config.batch, MOST if "small" not in trial.model else config.batch)
    model = create_model(trial.model, **trial.network).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimisers, batch = make_optimisers(model, config.optimiser, config.lr), random_batch(model.config, size)
    with one_thread():
        times = [spent(lambda: train_step(model, batch, optimisers)) for _ in range(WARM + TIMED)]
    return round(1000 * statistics.median(times[WARM:]) / size, 4)
