"""Fits the rates of `torchcaps/kernels/cost.py`: what each way to do a convolution takes, on one thread.

    python benchmarks/conv_costs.py            # writes results/bench/conv_costs.json, in three minutes

Every twin of every shape is timed by processor time, interleaved, the least of several rounds. Printed are the rates,
and how many times longer the twin with the least computed cost takes than the one that measured best: of the shapes of
the models, and of others. For another level of vectors:

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 python benchmarks/conv_costs.py \
        --out /tmp/avx2.json
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torchcaps.app.shapes import shapes
from torchcaps.core.files import write_json
from torchcaps.kernels import convolution, cost
from torchcaps.kernels.processor_time import one_thread, spent
from torchcaps.kernels.products import bmm
from torchcaps.kernels.workspace import keep_freed_memory
from torchcaps.training.runs import manifest

RESULT = Path(__file__).parent.parent / "results" / "bench" / "conv_costs.json"
BATCHES = {False: (1, 2, 4, 16, 64, 256), True: (16, 64, 128)}
"""Of inference and of training."""
OTHERS = (
    (4, 8, 8, 4, 3, 3, 1, 1), (8, 12, 12, 8, 9, 9, 2, 0), (1, 28, 28, 32, 5, 5, 1, 0), (16, 12, 12, 16, 9, 9, 2, 0),
    (32, 20, 20, 32, 9, 9, 2, 0), (3, 32, 32, 32, 5, 5, 2, 2), (32, 12, 12, 64, 5, 5, 1, 0),
    (64, 12, 12, 64, 5, 5, 2, 2), (64, 16, 16, 64, 7, 7, 1, 3), (3, 16, 16, 16, 3, 3, 2, 1),
    (256, 10, 10, 64, 3, 3, 2, 0), (16, 24, 24, 16, 1, 1, 1, 0), (12, 16, 16, 32, 3, 3, 1, 1),
    (32, 16, 16, 64, 3, 3, 1, 1), (64, 8, 8, 128, 3, 3, 1, 1), (128, 4, 4, 128, 3, 3, 1, 1),
)  # fmt: skip
LONGEST, SECONDS = 1.5, 0.06
"""Computed seconds of all twins from which a shape is left out, and how long one is measured."""


def calibrate() -> cost.Machine:
    """The least processor time of several tries."""
    side, size, calls = 384, 1 << 25, 300
    matrix, result, one = torch.ones(1, side, side), torch.empty(1, side, side), torch.ones(1)
    source, target = torch.ones(size // 4), torch.ones(size // 4)

    def call_often() -> None:
        for _ in range(calls):
            one.add(one)

    def least(call: Callable[[], object]) -> float:
        return min(spent(call) for _ in range(24))

    with one_thread(), torch.inference_mode():
        return cost.Machine(
            products=least(lambda: bmm(matrix, matrix, result)) / side**3 * 1e9,
            bytes=least(lambda: target.copy_(source)) / size * 1e9,
            call=least(call_often) / calls,
        )


def measure(shape: convolution.Shape, batch: int, training: bool) -> dict[str, float] | None:
    case, _ = convolution.described((batch, *shape), training)
    twins = convolution.possible(case)
    if sum(cost.estimate(case, twin) for twin in twins) > LONGEST:
        return None
    channels, height, width, outputs, down, across, stride, padding = shape
    conv = nn.Conv2d(channels, outputs, (down, across), stride, padding, bias=False)
    trial = convolution.Trial(conv, torch.rand(batch, channels, height, width), training)
    for twin in twins:
        trial(twin)
    least = dict.fromkeys(twins, float("inf"))
    start, rounds = time.monotonic(), 0
    while rounds < 3 or (time.monotonic() - start < SECONDS and rounds < 100):
        for twin in twins:
            least[twin] = min(least[twin], spent(lambda: trial(twin)))  # noqa: B023
        rounds += 1
    return least


def fit(rows: list[dict[str, Any]], machine: cost.Machine) -> dict[tuple[str, bool], cost.Work]:
    """Least squares of the errors' logarithms, step by step; no rate is negative.

    A twin that is far from the best one counts less: nobody will choose it.
    """
    from scipy.optimize import nnls

    rates = {}
    units = [cost.Work(*(float(i == j) for j in range(4))) for i in range(4)]
    for twin, training in cost.RATES:
        chosen = [row for row in rows if row["training"] == training and twin in row["ms"]]
        taken = np.array([row["ms"][twin] / 1e3 for row in chosen])
        best = np.array([min(row["ms"].values()) / 1e3 for row in chosen])
        works = [cost.work(twin, convolution.described(tuple(row["shape"]), training)[0]) for row in chosen]
        parts = np.array([[work.seconds(machine, unit) for unit in units] for work in works]) / taken[:, None]
        weights = 1 / np.maximum(1, taken / best / 1.5)
        solution, _ = nnls(parts * weights[:, None], weights)
        for _ in range(20):
            now = weights / np.maximum(parts @ solution, 0.2)
            solution = (solution + nnls(parts * now[:, None], now)[0]) / 2
        rates[twin, training] = cost.Work(*(float(f"{value:.3g}") for value in solution))
    return rates


def losses(rows: list[dict[str, Any]], choose: Callable[[cost.Conv, str], float]) -> list[float]:
    """Of each row, how many times longer the computed favourite takes than the best twin."""
    found = []
    for row in rows:
        case, _ = convolution.described(tuple(row["shape"]), row["training"])
        favourite = min(row["ms"], key=lambda twin: choose(case, twin))
        found.append(row["ms"][favourite] / min(row["ms"].values()))
    return found


def summary(rows: list[dict[str, Any]], choose: Callable[[cost.Conv, str], float]) -> dict[str, dict[str, float]]:
    kinds = {
        f"{'training' if training else 'inference'}, {'models' if models else 'others'}": [
            row for row in rows if row["training"] == training and bool(row["models"]) == models
        ]
        for training in (True, False)
        for models in (True, False)
    }
    found = {kind: losses(those, choose) for kind, those in kinds.items()}
    return {
        kind: {"shapes": len(those), "mean": round(sum(those) / len(those), 4), "worst": round(max(those), 2)}
        for kind, those in found.items()
    }


def line(row: dict[str, Any]) -> str:
    """Batch and shape (see `convolution.Shape`), then milliseconds of each twin."""
    kind = f"{'training' if row['training'] else 'inference'} of {'a model' if row['models'] else 'others'}"
    times = ", ".join(f"{twin} {value:g}" for twin, value in row["ms"].items())
    return f"{kind}, {' '.join(map(str, row['shape']))}: {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    start = time.monotonic()
    keep_freed_memory()
    torch.set_num_threads(1)
    machine = cost.Machine(*(float(f"{value:.3g}") for value in calibrate()))
    rows: list[dict[str, Any]] = []
    for shape, models in {**shapes(), **{shape: [] for shape in OTHERS}}.items():
        for training, batches in BATCHES.items():
            for batch in batches:
                seconds = measure(shape, batch, training)
                gc.collect()
                if seconds is not None:
                    ms = {twin: float(f"{1e3 * value:.4g}") for twin, value in seconds.items()}
                    rows.append({"shape": [batch, *shape], "training": training, "models": len(models), "ms": ms})
    rates = fit(rows, machine)

    def fitted(case: cost.Conv, twin: str) -> float:
        return cost.work(twin, case).seconds(machine, rates[twin, case.training])

    named = {f"{twin}, {'training' if training else 'inference'}": work for (twin, training), work in rates.items()}
    result = {
        **manifest({"train": {"seed": 0}}, {}),
        "command": " ".join(["python", "benchmarks/conv_costs.py", *sys.argv[1:]]),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "rates": {"machine": machine._asdict()} | {name: work._asdict() for name, work in named.items()},
        "times_longer_than_the_best": {"of cost.py": summary(rows, cost.estimate), "fitted now": summary(rows, fitted)},
        "rows": [line(row) for row in rows],
        "seconds": round(time.monotonic() - start, 1),
    }
    write_json(args.out, result)
    print(json.dumps({key: result[key] for key in ("rates", "times_longer_than_the_best", "seconds")}, indent=1))


if __name__ == "__main__":
    main()
