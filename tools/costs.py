"""Measure what a training image costs for every network in the plans, and write torchcaps/experiments/costs.json.

python tools/costs.py [PRESET ...]            # default: standard; networks that are in the file are not measured again
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.experiments import EXPERIMENTS, costs  # noqa: E402
from torchcaps.experiments.base import Study  # noqa: E402
from torchcaps.experiments.reproduce import load  # noqa: E402
from torchcaps.training.runs import manifest  # noqa: E402


def main() -> None:
    known = costs.measured()
    for preset in sys.argv[1:] or ["standard"]:
        for name in EXPERIMENTS:
            for trial in load(name).plan(Study(name, preset)):  # pyright: ignore[reportArgumentType]
                if (key := costs.key(trial)) not in known:
                    known[key] = costs.measure(trial)
                    print(f"{known[key]:8.3f} ms  {key}", flush=True)
                    write(known)


def write(known: dict[str, float]) -> None:
    origin = manifest({"train": {"seed": 0}}, {})
    content = {
        "command": "python tools/costs.py",
        "machine": origin["machine"]["processor"],
        "commit": origin["commit"],
    }
    costs.FILE.write_text(json.dumps({**content, "milliseconds": dict(sorted(known.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
