"""What the kernels do on this machine, and why: what `torchcaps doctor` and `torchcaps bench --kernels` show."""

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torchcaps.core.files import cache_folder
from torchcaps.core.machine import processor
from torchcaps.core.types import Capsules
from torchcaps.kernels import compiler, convolution, cost, dispatch, evidence, fused_norm, native, products, tuning
from torchcaps.routing import EM, Dynamic, VoteShape

BATCHES = ((1, False), (16, False), (128, False), (16, True), (128, True))
"""Each with whether it is training."""
LONGEST = 1.0
"""Seconds of computed cost, all twins together, from which a shape is not measured for the report."""
SHOWN = 20
"""Choices for other shapes that people are shown, the newest ones."""


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
        "layers": layers(),
    }


def layers() -> list[dict[str, str]]:
    """What computes the layers that have one kernel each; a small one is asked."""
    children, weight = Capsules(torch.rand(2, 3, 4), torch.rand(2, 3)), torch.rand(3, 2, 4, 4)
    votes, image = VoteShape(3, 2, 4), torch.rand(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    with torch.enable_grad():
        served = {
            "dynamic routing": dispatch.kernel_for("dense", Dynamic(votes), children, weight, trace=False) is not None,
            "EM routing": dispatch.kernel_for("dense", EM(votes), children, weight, trace=False) is not None,
            "batch normalisation in training": fused_norm.supports(nn.BatchNorm2d(8), image),
        }
    served["products in the Fourier domain"] = products.is_used()
    loops = ("fused_routing", "em", "norm", "products")
    return [
        {"name": name, "kernel": f"{loop}.c" if used else "PyTorch", "why": "" if used else _why_not(loop)}
        for (name, used), loop in zip(served.items(), loops, strict=True)
    ]


def _why_not(loop: str) -> str:
    if native.library(loop) is None:
        return native.state(loop).reason
    if loop == "products":
        return "its own products are as fast on this processor"
    return f"{tuning.VARIABLE}={tuning.mode()}"


def convolutions(shapes: Mapping[convolution.Shape, list[str]], measured: bool = False) -> list[dict[str, Any]]:
    """For each shape, given with the models that have it: what `convolution.chosen` says, why, and by how much.

    `ratio` is what the plain twin takes over what the chosen one takes: of measured times where there are any, else of
    computed cost. With `measured` all twins are measured, which changes nothing that is chosen or remembered.
    """
    known = evidence.read().get("choices", {})
    return [
        _row(shape, batch, training, known, measured) | {"models": models}
        for shape, models in shapes.items()
        for batch, training in BATCHES
    ]


def others(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remembered choices for other shapes, batches or numbers of threads than those of the rows; the newest first."""
    names = {row["name"] for row in rows}
    known = {name: entry for name, entry in evidence.read().get("choices", {}).items() if name not in names}
    found = [{"name": name} | _shown(entry) for name, entry in known.items() if _readable(entry)]
    return sorted(found, key=lambda row: row["date"], reverse=True)


def _readable(entry: Any) -> bool:
    try:
        return bool(_shown(entry)["date"])
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return False


def _row(
    shape: convolution.Shape, batch: int, training: bool, known: Mapping[str, Any], measured: bool
) -> dict[str, Any]:
    case, name = convolution.described((batch, *shape), training, threads=torch.get_num_threads())
    estimates = {twin: cost.estimate(case, twin) for twin in convolution.possible(case)}
    found = _foreseen(case, name, estimates, known.get(name))
    if measured and sum(estimates.values()) < LONGEST:
        channels, height, width, outputs, down, across, stride, padding = shape
        conv = nn.Conv2d(channels, outputs, (down, across), stride, padding)
        trial = convolution.Trial(conv, torch.rand(batch, channels, height, width), training)
        seconds, rounds = tuning.measure(estimates, trial)
        found |= {"measured_ms": {twin: round(1e3 * value, 4) for twin, value in seconds.items()}, "rounds": rounds}
    row = {"name": name, "batch": batch, "training": training, "threads": torch.get_num_threads()}
    return row | _shown(found)


def _foreseen(case: cost.Conv, name: str, estimates: Mapping[str, float], entry: Any) -> dict[str, Any]:
    """What `convolution.chosen` returns for float32 numbers, with its evidence; what it would measure is computed."""
    remembered = tuning.holds(entry, estimates)
    found = dict(entry) if remembered else tuning.decide(estimates, None)
    mode, in_process = tuning.mode(), tuning.choices().get(name)
    weights = case.outputs * case.channels * math.prod(case.kernel)
    if mode == "plain":
        return found | {"choice": "plain", "by": f"{tuning.VARIABLE}=plain"}
    if mode == "fast":
        return found | {
            "choice": convolution.fewest_products(case, "tiles" in estimates),
            "by": f"{tuning.VARIABLE}=fast",
        }
    if convolution.is_quick(case.batch, weights, case.training):
        return found | {"choice": "plain", "by": "one image, few weights"}
    if in_process in estimates and in_process != found["choice"]:
        return found | {"choice": in_process, "by": "chosen before in this process"}
    if not remembered and not case.training and case.batch > 1 and tuning.to_measure(estimates):
        return found | {"by": "computed cost, to be measured"}
    return found


def _shown(found: Mapping[str, Any]) -> dict[str, Any]:
    times = found.get("measured_ms") or {}
    costs = times if {"plain", found["choice"]} <= set(times) else found["estimated_ms"]
    return {
        "choice": found["choice"],
        "why": found["by"],
        "ratio": round(costs["plain"] / costs[found["choice"]], 2),
        "estimated_ms": found["estimated_ms"],
        "measured_ms": times,
        "rounds": found.get("rounds", 0),
        "date": found["date"],
    }


def text(state: dict[str, Any], rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """All of it for people, in lines: one for each shape, with a column for each batch."""
    lines = [f"{key:18} {value}" for key, value in state.items() if not isinstance(value, dict | list)]
    for library in state["libraries"]:
        what = (
            f"from the {library['origin']}, {library['level']}" if library["path"] else f"missing: {library['reason']}"
        )
        lines.append(f"{library['name'] + '.c':18} {what}{', on PyTorch threads' if library['openmp'] else ''}")
    lines += ["", "Layers"]
    for layer in state["layers"]:
        lines.append(f"{layer['name']:32} {layer['kernel']}{': ' + layer['why'] if layer['why'] else ''}")
    lines += ["", *_table(rows)]
    if others:
        lines += ["", f"Remembered for other shapes ({len(others)}; * measured)"]
        lines += [f"{_cell(row):14} {row['name'].replace(', torch.float32 on cpu', '')}" for row in others[:SHOWN]]
        lines += [f"and {len(others) - SHOWN} more: --json"] * (len(others) > SHOWN)
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    mode = tuning.mode()
    by = "computed; * measured, ? to be measured at first use" if mode == "auto" else f"{tuning.VARIABLE}={mode}"
    heads = [f"{batch}{' training' if training else ''}" for batch, training in BATCHES]
    lines = [
        f"Convolutions of the models: what computes them for so many images, and how many times faster ({by})",
        "".join(f"{head:15}" for head in heads) + "convolution",
    ]
    for start in range(0, len(rows), len(BATCHES)):
        group = rows[start : start + len(BATCHES)]
        shape = group[0]["name"].split(" conv2d 1 x ")[1].split(", torch.")[0].replace(", padding 0", "")
        several = f" and {len(group[0]['models']) - 1} more" if len(group[0]["models"]) > 1 else ""
        models = f"{group[0]['models'][0]}{several}" if group[0]["models"] else ""
        lines.append("".join(f"{_cell(row):15}" for row in group) + f"{shape.replace(', stride 1', ''):50} {models}")
    return lines


def _cell(row: dict[str, Any]) -> str:
    measured = {"plain", row["choice"]} <= set(row["measured_ms"])
    mark = "*" if measured else "?" * row["why"].endswith("to be measured")
    return f"{row['choice']} {row['ratio']:.2f}{mark}"
