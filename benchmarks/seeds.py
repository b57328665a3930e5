"""Train a model with several seeds and keep the scores in results/: the mean, the spread, and where they come from.

    python benchmarks/seeds.py results/mnist-small.json capsnet-mnist-small --max-seconds 180

Finished runs under runs/ are not repeated, unfinished ones are gone on with.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

COMMON = ("data", "model", "parameters", "metric", "images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="the file to write, such as results/mnist-small.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--note", default="", help="a sentence to keep with the result")
    arguments, train = parser.parse_known_args()
    trials = [
        _trial(arguments.runs / f"{arguments.result.stem}-seed{seed}", seed, train) for seed in range(arguments.seeds)
    ]
    manifest = json.loads((arguments.runs / f"{arguments.result.stem}-seed0" / "manifest.json").read_text())
    scores = [name for name, value in trials[0].items() if isinstance(value, float) and name != "seconds"]
    summary = {
        "command": f"python benchmarks/seeds.py {arguments.result} --seeds {arguments.seeds} {' '.join(train)}",
        **{name: trials[0][name] for name in COMMON},
        "seeds": len(trials),
        "mean": {name: statistics.mean(trial[name] for trial in trials) for name in scores},
        "deviation": {name: statistics.stdev(t[name] for t in trials) if len(trials) > 1 else None for name in scores},
        "note": arguments.note,
        "machine": manifest["machine"],
        "versions": manifest["versions"],
        "commit": manifest["commit"],
        "trials": trials,
    }
    arguments.result.parent.mkdir(parents=True, exist_ok=True)
    arguments.result.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"{arguments.result}: accuracy {summary['mean']['accuracy']:.4%}")


def _trial(out: Path, seed: int, train: list[str]) -> dict:
    if not (out / "result.json").exists():
        options = ["--resume"] if (out / "config.json").exists() else [*train, "--seed", str(seed)]
        subprocess.run([sys.executable, "-m", "torchcaps", "train", *options, "--out", str(out)], check=True)
    return json.loads((out / "result.json").read_text())


if __name__ == "__main__":
    main()
