"""Training steps of this checkout against those of an older one, in turns, in one run.

    python benchmarks/against.py OLDER_CHECKOUT matrix-smallnorb-small:32 matrix-smallnorb:8

Both run with the Python and the packages of this environment. Writes results/bench/against.json.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from torchcaps.core.files import write_json
from torchcaps.training.runs import manifest

ROOT = Path(__file__).parent.parent
REPEATS, WARM_UP = 10, 3
STEP = """
import sys, time
try:
    from torchcaps.app.twins import training
except ImportError:
    from torchcaps.twins import training
from torchcaps.kernels.workspace import keep_freed_memory
keep_freed_memory()
work = training(sys.argv[1], int(sys.argv[2]), "ours")
for line in sys.stdin:
    start = time.perf_counter()
    work()
    print(time.perf_counter() - start, flush=True)
"""


def worker(checkout: Path, name: str, batch: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", STEP, name, batch]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=environment, cwd=checkout)


def step(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    print(file=process.stdin, flush=True)
    return float(process.stdout.readline())


def main() -> None:
    older, *cases = sys.argv[1:]
    rows = []
    for case in cases:
        name, _, batch = case.partition(":")
        twins = {"before": worker(Path(older).resolve(), name, batch), "now": worker(ROOT, name, batch)}
        for _ in range(WARM_UP):
            for process in twins.values():
                step(process)
        times: dict[str, list[float]] = {side: [] for side in twins}
        for repeat in range(REPEATS):
            for side in sorted(twins, reverse=bool(repeat % 2)):
                times[side].append(step(twins[side]))
        for process in twins.values():
            process.kill()
        rate = {side: int(batch) / statistics.median(seconds) for side, seconds in times.items()}
        rates = {f"{side}_images_per_second": round(value, 1) for side, value in rate.items()}
        rows.append({"name": name, "batch": int(batch), **rates, "ratio": round(rate["now"] / rate["before"], 2)})
        print(json.dumps(rows[-1]))
    describe = ["git", "-C", older, "describe", "--always"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    origin = {
        **manifest({"train": {"seed": 0}}, {}),
        "command": " ".join(["python", "benchmarks/against.py", "OLDER_CHECKOUT", *cases]),
    }
    write_json(ROOT / "results" / "bench" / "against.json", {**origin, "before": commit, "rows": rows})


if __name__ == "__main__":
    main()
