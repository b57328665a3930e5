"""Measure the plain twins against ours and keep the numbers: `python benchmarks/run.py [NAME...]`.

Writes `results/bench/bench.json` (all benchmarks, unless named) with command, machine and versions;
`python tools/tables.py` puts the table into docs/performance.md.
"""

import argparse
import sys
import time
from pathlib import Path

from torchcaps.app.bench import run
from torchcaps.core.files import write_json
from torchcaps.training.runs import manifest

RESULT = Path(__file__).parent.parent / "results" / "bench" / "bench.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which benchmarks (default: all)")
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    start = time.perf_counter()
    rows = run(args.names, args.repeats)
    seconds = round(time.perf_counter() - start, 1)
    origin = manifest({"train": {"seed": 0}}, {})
    command = " ".join(["python", "benchmarks/run.py", *sys.argv[1:]])
    write_json(RESULT, {**origin, "command": command, "seconds": seconds, "rows": rows})


if __name__ == "__main__":
    main()
