"""Mutated files for every reader, for so many seconds each; writes results/fuzz-readers.json.

nice python benchmarks/fuzz_readers.py --seconds 60
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from faulty import readers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="formats at a time")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = readers.fuzz(Path(folder), arguments.seconds, arguments.seed, arguments.jobs)
    result = {
        "command": f"python benchmarks/fuzz_readers.py --seconds {arguments.seconds:g} --seed {arguments.seed} "
        f"--jobs {arguments.jobs}",
        "seed": arguments.seed,
        "seconds_for_each_format": arguments.seconds,
        "files": sum(part["files"] for part in found["formats"].values()),
        **found,
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(sum(part["processor_seconds"] for part in found["formats"].values()), 1),
    }
    print(json.dumps(result, indent=2))
    if found["faults"]:
        sys.exit(1)
    Path("results/fuzz-readers.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
