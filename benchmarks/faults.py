"""Faults in every place: failing system calls, kills, power loss, damaged files, mutated run folders.

python benchmarks/faults.py                       # all of it, about ten minutes of one core; writes results/faults.json
python benchmarks/faults.py --only power_loss     # one part; the others stay as they are in the results

Nothing that was finished may be lost, every message is one line, there is no traceback, and the exit code is 2.
`docs/reliability.md` says what is promised and how each part is tested.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS = ["system_calls", "power_loss", "damaged_files", "mutated_runs"]


def build_shim(folder: Path) -> Path:
    target = folder / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", target, HERE / "faulty" / "shim.c", "-ldl"], check=True)
    return target


def started(part: str, folder: Path, *arguments: Any, **environment: str) -> subprocess.Popen[str]:
    """A part in a process of its own; what it finds goes to standard error as it is found."""
    room = folder / part
    room.mkdir()
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", f"faulty.{part.split('-')[0]}", str(room), *map(str, arguments)]
    settings = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings)


def answer_of(process: subprocess.Popen[str]) -> Any:
    text, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{process.args} ended with {process.returncode}")
    return json.loads(text.splitlines()[-1])


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of what several processes counted."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, dict):
                total[name] = together([total.get(name, {}), value])
            elif isinstance(value, list):
                total[name] = [*total.get(name, []), *value]
            else:
                total[name] = total.get(name, 0) + value
    return total


def start(part: str, folder: Path, arguments: argparse.Namespace) -> list[subprocess.Popen[str]]:
    jobs, mutants = arguments.jobs, arguments.mutants
    match part:
        case "power_loss":
            return [started("power", folder)]
        case "damaged_files":
            return [started("mutants-damage", folder, "damage")]
        case "mutated_runs":
            share = [mutants // jobs + (job < mutants % jobs) for job in range(jobs)]
            seeds = [arguments.seed + job for job in range(jobs)]
            return [started(f"mutants-{job}", folder, "mutants", share[job], seeds[job]) for job in range(jobs)]
        case _:
            shim = str(build_shim(folder))
            return [
                started(f"syscalls-{job}", folder, arguments.seconds, job, jobs, LD_PRELOAD=shim) for job in range(jobs)
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="this part, and leave the others as they are in the results")
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=3600, help="for the faults of system calls, in random order")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time for the mutants and the system calls")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    target = Path("results/faults.json")
    chosen = [arguments.only] if arguments.only else PARTS
    options = (
        f"--mutants {arguments.mutants} --seconds {arguments.seconds} --jobs {arguments.jobs} --seed {arguments.seed}"
    )
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=HERE)
    new: dict[str, Any] = {}
    for part in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = together([answer_of(process) for process in start(part, Path(folder), arguments)])
        where = {"command": f"python benchmarks/faults.py --only {part} {options}", "commit": commit.stdout.strip()}
        new[part] = {**where, "seconds": round(time.monotonic() - began, 1), **found}
        print(json.dumps(new[part], indent=2), flush=True)
    parts = {**(json.loads(target.read_text())["parts"] if target.exists() else {}), **new}
    injected = [part["injected"] for name, part in parts.items() if name != "mutated_runs"]
    result = {
        "command": f"python benchmarks/faults.py {options}",
        "configuration": "a capsule network of 4 channels, 60 images of mnist-mini, 3 steps, one thread in a process",
        "seed": arguments.seed,
        "seconds": round(sum(part["seconds"] for part in parts.values()), 1),
        "injected_faults": sum(injected),
        "mutated_runs": parts.get("mutated_runs", {}).get("injected", 0),
        "wrong": sum(part["wrong"] for part in parts.values()),
        "parts": parts,
    }
    target.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
