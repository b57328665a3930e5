"""Kill a worker of a training under torchrun, twenty times, and compare the final bytes with an undisturbed training.

python benchmarks/kill_worker.py --kills 20        # writes results/kill-worker.json

torchrun starts its workers again after each kill (`--max-restarts`); nothing else is done to make the training go on.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NETWORK = {"channels": 8, "primary_types": 2, "decoder": (16,)}
TRAINING = {"batch": 24, "validation": 100, "checkpoint_seconds": 0.0, "seed": 0}
FILES = ("model.safetensors", "metrics.csv", "frames.safetensors")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHCAPS_TIMEOUT": "120"}


def work(out: Path, steps: int) -> None:
    """What a worker does."""
    import torchcaps

    (out.parent / f"{out.name}.pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    options = {"overrides": NETWORK, "steps": steps, "resume": False, "quiet": True}
    torchcaps.fit("capsnet-mnist-small", "mnist-mini", out=out, **options, **TRAINING)


def torchrun(*options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--monitor-interval", "0.1", *options, __file__]


def start(out: Path, steps: int, workers: int, restarts: int) -> subprocess.Popen[bytes]:
    local = ["--standalone", "--nproc-per-node", str(workers), "--max-restarts", str(restarts)]
    command = [*torchrun(*local), "--work", str(out), "--steps", str(steps)]
    with open(out.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)


def step_of(out: Path) -> int:
    try:
        return json.loads((out / "checkpoint" / "latest.json").read_text())["step"]
    except (OSError, ValueError):
        return 0


def same_bytes(one: Path, other: Path) -> dict[str, bool]:
    return {name: (one / name).read_bytes() == (other / name).read_bytes() for name in FILES}


def disturbed(out: Path, steps: int, workers: int, kills: int, seed: int) -> list[dict[str, int]]:
    """Train, and kill a worker drawn by lot whenever the training comes past one of so many steps, drawn by lot too."""
    lots = random.Random(seed)
    moments = sorted(lots.sample(range(2, steps - 1), kills))
    process, killed = start(out, steps, workers, kills), []
    while process.poll() is None:
        at = step_of(out)
        if len(killed) < kills and at >= moments[len(killed)]:
            rank = lots.randrange(workers)
            pid = _pid(out, rank)
            os.kill(pid, signal.SIGKILL)
            killed.append({"step": at, "rank": rank})
            # The next kill is for the workers that take the place of these.
            while process.poll() is None and _pid(out, rank) == pid:
                time.sleep(0.05)
        time.sleep(0.02)
    if process.returncode:
        sys.exit(
            f"the training did not go on after {len(killed)} kills:\n{out.with_suffix('.log').read_text()[-3000:]}"
        )
    return killed


def _pid(out: Path, rank: int) -> int:
    try:
        return int((out.parent / f"{out.name}.pid-{rank}").read_text())
    except (OSError, ValueError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    steps, workers, kills = arguments.steps, arguments.workers, arguments.kills
    if arguments.work:
        return work(arguments.work, steps)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        whole, hurt = Path(folder) / "whole", Path(folder) / "hurt"
        if start(whole, steps, workers, 0).wait():
            sys.exit(f"the undisturbed training failed:\n{whole.with_suffix('.log').read_text()[-3000:]}")
        killed = disturbed(hurt, steps, workers, kills, arguments.seed)
        same = same_bytes(whole, hurt)
    result = {
        "command": f"python benchmarks/kill_worker.py --kills {kills} --workers {workers} --steps {steps} "
        f"--seed {arguments.seed}",
        "configuration": {"model": "capsnet-mnist-small", "data": "mnist-mini", "overrides": NETWORK, **TRAINING},
        "workers": workers,
        "steps": steps,
        "seed": arguments.seed,
        "kills": len(killed),
        "killed": killed,
        "byte_identical": same,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result, indent=2))
    if len(killed) < kills or not all(same.values()):
        sys.exit(1)
    Path("results/kill-worker.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
