"""Fits the rates of `torchcaps/kernels/cost.py`: what each way to do a convolution takes, on one thread.

    python benchmarks/conv_costs.py [--quick]

Every twin of every shape is timed by processor time, interleaved, the least of several rounds. Printed are the rates,
and for each shape what was measured and what the rates say.
"""

import argparse
import json
import time

import numpy as np
import torch
from torch import nn

from torchcaps.kernels import convolution, cost
from torchcaps.kernels.report import SHAPES
from torchcaps.kernels.workspace import keep_freed_memory

BATCHES = (1, 2, 4, 16, 128)
EXTRA = [(12, 16, 16, 32, 3, 1, 1), (32, 16, 16, 64, 3, 1, 1), (64, 8, 8, 128, 3, 1, 1), (128, 4, 4, 128, 3, 1, 1)]


def measure(shape: tuple[int, ...], batch: int, training: bool, seconds: float) -> dict[str, float]:
    c, h, w, o, k, stride, padding = shape
    conv, x = nn.Conv2d(c, o, k, stride, padding, bias=False), torch.rand(batch, c, h, w)
    with torch.set_grad_enabled(training):
        twins = convolution._usable(conv, x)
    trial = convolution.Trial(conv, x, training)
    for twin in twins:
        trial(twin)
    least = dict.fromkeys(twins, float("inf"))
    start, rounds = time.monotonic(), 0
    while rounds < 3 or (time.monotonic() - start < seconds and rounds < 300):
        for twin in twins:
            before = time.process_time()
            trial(twin)
            least[twin] = min(least[twin], time.process_time() - before)
        rounds += 1
    return least


def fit(rows: list[dict], machine: cost.Machine) -> dict[str, list[float]]:
    """Least squares of relative errors; no rate is negative."""
    from scipy.optimize import nnls

    rates = {}
    for kind in sorted({(row["twin"], row["training"]) for row in rows}):
        chosen = [row for row in rows if (row["twin"], row["training"]) == kind]
        units = [cost.Work(*(float(i == j) for j in range(4))) for i in range(4)]
        parts = [[row["work"].seconds(machine, unit) for unit in units] for row in chosen]
        taken = np.array([row["seconds"] for row in chosen])
        solution, _ = nnls(np.array(parts) / taken[:, None], np.ones(len(taken)))
        rates[f"{kind[0]} {'training' if kind[1] else 'inference'}"] = [round(float(x), 2) for x in solution]
        for row, part in zip(chosen, parts, strict=True):
            row["estimate"] = float(np.dot(part, solution))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the largest shapes, a fifth of the time")
    quick = parser.parse_args().quick
    keep_freed_memory()
    torch.set_num_threads(1)
    machine = min((cost.calibrate() for _ in range(3)), key=lambda found: found.products)
    rows: list[dict] = []
    for shape in [*SHAPES, *EXTRA]:
        for batch in BATCHES:
            for training in (False, True):
                heavy = batch * shape[0] * shape[3] * shape[4] > 10**8 / 4
                if (training and batch < 16) or (quick and heavy):
                    continue
                case, name = convolution.described((batch, *shape[:4], shape[4], shape[4], *shape[5:]), training)
                for twin, seconds in measure(shape, batch, training, 0.05 if quick else 0.3).items():
                    work = cost.work(twin, case)
                    rows.append({"name": name, "training": training, "twin": twin, "work": work, "seconds": seconds})
    rates = fit(rows, machine)
    for row in rows:
        print(f"{row['seconds'] * 1e3:9.3f} {row['estimate'] * 1e3:9.3f} ms  {row['twin']:8} {row['name']}")
    print(json.dumps({"machine": machine._asdict(), "rates": rates}, indent=1))


if __name__ == "__main__":
    main()
