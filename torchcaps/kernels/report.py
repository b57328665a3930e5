"""What the kernels do on this machine, and why: what `torchcaps doctor` and `torchcaps bench --kernels` show."""

import os
from typing import Any

import torch
from torch import nn

from torchcaps.core.files import cache_folder
from torchcaps.core.machine import processor
from torchcaps.kernels import compiler, convolution, cost, evidence, native, tuning

# Channels, height, width, outputs, kernel, stride, padding: the convolutions of the models that are shipped.
SHAPES = (
    (256, 20, 20, 256, 9, 2, 0),
    (256, 28, 28, 256, 9, 2, 0),
    (256, 32, 32, 256, 9, 2, 0),
    (256, 24, 24, 256, 9, 2, 0),
    (256, 16, 16, 512, 9, 2, 0),
    (64, 24, 24, 96, 9, 2, 0),
    (4, 14, 14, 32, 3, 1, 1),
    (32, 14, 14, 64, 4, 2, 0),
    (64, 6, 6, 128, 3, 1, 1),
    (128, 6, 6, 128, 3, 1, 1),
    (128, 6, 6, 32, 3, 1, 0),
    (40, 14, 14, 80, 4, 2, 0),
    (80, 6, 6, 160, 3, 1, 1),
    (160, 6, 6, 160, 3, 1, 1),
    (160, 6, 6, 32, 3, 1, 0),
)
BATCHES = ((1, False), (16, False), (128, False), (16, True), (128, True))
"""Each with whether it is training."""
LONGEST = 1.0
"""Seconds of computed cost, all twins together, from which a shape is not measured for the report."""


def state() -> dict[str, Any]:
    """The machine, the libraries and where they come from."""
    command = compiler.command()
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "kernels": tuning.mode(),
        "compiler": " ".join(command) if command else None,
        "cache": str(cache_folder()),
        "seconds_per_billion": {"products": cost.this_machine().products, "bytes": cost.this_machine().bytes},
        "seconds_per_call": cost.this_machine().call,
        "libraries": [
            {"name": name} | {key: value for key, value in native.state(name)._asdict().items() if key != "functions"}
            for name in compiler.sources()
        ],
    }


def convolutions(measured: bool = False) -> list[dict[str, Any]]:
    """For each shape of the shipped models: what is chosen, why, and by how much.

    `ratio` is what the plain twin takes over what the chosen one takes: of measured times where there are any, else of
    computed cost. What is remembered is shown as it is; the rest is computed, and with `measured` also measured, which
    changes nothing that is remembered.
    """
    return [_row(shape, batch, training, measured) for shape in SHAPES for batch, training in BATCHES]


def _row(shape: tuple[int, ...], batch: int, training: bool, measured: bool) -> dict[str, Any]:
    channels, height, width, outputs, kernel, stride, padding = shape
    full = (batch, channels, height, width, outputs, kernel, kernel, stride, padding)
    case, name = convolution.described(full, training, threads=torch.get_num_threads())
    twins = convolution.possible(case)
    estimates = {twin: cost.estimate(case, twin) for twin in twins}
    found = evidence.read().get("choices", {}).get(name)
    if measured and sum(estimates.values()) < LONGEST:
        conv, x = nn.Conv2d(channels, outputs, kernel, stride, padding), torch.rand(batch, channels, height, width)
        trial = convolution.Trial(conv, x, training)
        fresh = tuning.decide(estimates, None if training else trial)
        seconds, rounds = tuning.measure(twins, trial)
        fresh |= {"measured_ms": {twin: round(1e3 * value, 4) for twin, value in seconds.items()}, "rounds": rounds}
        found = (found or fresh) | {key: fresh[key] for key in ("measured_ms", "rounds", "estimated_ms")}
    if found is None:
        found = tuning.decide(estimates, None)
    times = found.get("measured_ms", {})
    costs = times if {"plain", found["choice"]} <= set(times) else found["estimated_ms"]
    return {"name": name, "batch": batch, "training": training, "threads": torch.get_num_threads()} | {
        "choice": found["choice"],
        "why": found["by"],
        "ratio": round(costs["plain"] / costs[found["choice"]], 2),
        "estimated_ms": found["estimated_ms"],
        "measured_ms": times,
        "rounds": found.get("rounds", 0),
        "date": found["date"],
    }


def text(state: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Both for people, in lines."""
    lines = [f"{key:18} {value}" for key, value in state.items() if not isinstance(value, dict | list)]
    for library in state["libraries"]:
        what = (
            f"from the {library['origin']}, {library['level']}" if library["path"] else f"missing: {library['reason']}"
        )
        lines.append(f"{library['name'] + '.c':18} {what}{', on PyTorch threads' if library['openmp'] else ''}")
    lines += ["", f"{'chosen':9} {'faster':>7}  {'plain ms':>10}  {'why':15} convolution"]
    for row in rows:
        costs = row["measured_ms"] if "plain" in row["measured_ms"] else row["estimated_ms"]
        name = row["name"].split(", torch.")[0]
        lines.append(f"{row['choice']:9} {row['ratio']:7.2f}  {costs['plain']:10.3f}  {row['why']:15} {name}")
    return "\n".join(lines)
