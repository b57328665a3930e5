"""The first use of a network on a machine: how long its first step takes, and what other programs do to its kernels.

    python benchmarks/first_use.py            # writes results/bench/first_use.json

Every try has an empty cache folder. While the network is used for the first time, other processes compute in bursts;
then they stop, and training steps of the plain twin and of ours take turns in the processes that were begun so.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torchcaps.app.bench import PAUSE
from torchcaps.core.files import write_json
from torchcaps.training.runs import manifest

RESULT = Path(__file__).parent.parent / "results" / "bench" / "first_use.json"
BUSY = "import time\nend = time.time() + 600\nwhile time.time() < end:\n    sum(range(10**6))"
STEP = """
import statistics, sys, time
from torchcaps.app import twins
from torchcaps.kernels.workspace import keep_freed_memory
name, batch, twin, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
if twin == "ours":
    keep_freed_memory()
work = getattr(twins, kind)(name, batch, twin)
for turn in sys.stdin:
    times = []
    while sum(times) <= float(turn):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(statistics.median(times), flush=True)
"""


class Worker:
    """One twin in a process of its own: training steps, or inference."""

    def __init__(self, name: str, batch: int, twin: str, cache: str, kind: str = "training") -> None:
        environment = {"XDG_CACHE_HOME": cache, "TORCHCAPS_KERNELS": "auto" if twin == "ours" else "plain"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", STEP, name, str(batch), twin, kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment,
        )  # fmt: skip

    def step(self, turn: float = 0.0) -> float:
        """Seconds of one call, or the median of as many as fit into a turn."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        time.sleep(PAUSE)
        print(turn, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def first_step(name: str) -> float:
    """Seconds of the first training step with an empty cache, after the imports."""
    with tempfile.TemporaryDirectory() as cache:
        worker = Worker(name, 128, "ours", cache)
        seconds = worker.step()
        worker.close()
    return round(seconds, 2)


def after_bursts(name: str, batch: int, repeats: int, seed: int) -> dict[str, Any]:
    """Plain over ours, after a first use beside two processes that stop and go on at random."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as cache:
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]
        bursts = subprocess.Popen([sys.executable, "-c", _bursts([other.pid for other in others], draw.random())])
        ours = Worker(name, batch, "ours", cache)
        for _ in range(3):
            ours.step()
        for process in (bursts, *others):
            process.kill()
            process.wait()
        plain = Worker(name, batch, "plain", cache)
        for worker in (plain, ours):
            worker.step()
        times = [(plain.step(), ours.step()) for _ in range(repeats)]
        for worker in (plain, ours):
            worker.close()
    slow, fast = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    return {"plain_ms": round(slow), "ours_ms": round(fast), "ratio": round(slow / fast, 2)}


def _bursts(pids: list[int], seed: float) -> str:
    return (
        f"import os, random, signal, time\ndraw = random.Random({seed})\n"
        f"while True:\n    for pid in {pids}:\n"
        "        os.kill(pid, signal.SIGCONT if draw.random() < 0.5 else signal.SIGSTOP)\n"
        "    time.sleep(draw.uniform(0.05, 0.5))"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    start = time.perf_counter()
    first = {name: first_step(name) for name in ("capsnet-multimnist-small", "capsnet-mnist-small")}
    tries = [after_bursts("capsnet-mnist", 128, arguments.repeats, seed) for seed in range(arguments.tries)]
    worst = min(row["ratio"] for row in tries)
    result = {"first_step_seconds": first, "worst_ratio": worst, "after_bursts": tries}
    print(json.dumps(result, indent=2))
    origin = manifest({"train": {"seed": 0}}, {})
    command = " ".join(["python", "benchmarks/first_use.py", *sys.argv[1:]])
    write_json(RESULT, {**origin, "command": command, **result, "seconds": round(time.perf_counter() - start, 1)})


if __name__ == "__main__":
    main()
