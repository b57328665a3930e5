"""Kill a training with SIGKILL at random moments, go on each time, and compare the final bytes with an undisturbed run.

python benchmarks/kill_resume.py --kills 20        # writes results/kill-resume.json
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OPTIONS = "--data mnist-mini --batch 32 --validation 200 --checkpoint-seconds 0 --epochs 8"
TRAIN = ["capsnet-mnist-small", *OPTIONS.split()]


def train(out: Path) -> subprocess.Popen:
    resume = ["--resume"] if (out / "config.json").exists() else []
    command = [sys.executable, "-m", "torchcaps", "train", *TRAIN, "--out", str(out), *resume]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments, began = random.Random(arguments.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        if train(whole).wait():
            sys.exit("the undisturbed run failed")
        lifetime = 1.3 * (time.monotonic() - began) / arguments.kills
        steps = []
        while not (killed / "result.json").exists():
            process = train(killed)
            if len(steps) < arguments.kills:
                # Between the start of the process and well past its first new checkpoint.
                time.sleep(moments.uniform(0.5, 6.0 + 2 * lifetime))
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    pointer = killed / "checkpoint" / "latest.json"
                    steps.append(json.loads(pointer.read_text())["step"] if pointer.exists() else 0)
            _, errors = process.communicate()
            if process.returncode not in (0, -signal.SIGKILL):
                sys.exit(f"a run could not go on after {len(steps)} kills: {errors.decode()}")
        same = {
            name: (whole / name).read_bytes() == (killed / name).read_bytes()
            for name in ("model.safetensors", "metrics.csv", "frames.safetensors")
        }
    result = {
        "command": f"python benchmarks/kill_resume.py --kills {arguments.kills} --seed {arguments.seed}",
        "training": " ".join(TRAIN),
        "kills": len(steps),
        "checkpoint_at_each_kill": steps,
        "byte_identical": same,
        "seconds": round(time.monotonic() - began, 1),
    }
    Path("results").mkdir(exist_ok=True)
    Path("results/kill-resume.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    sys.exit(0 if all(same.values()) else 1)


if __name__ == "__main__":
    main()
