"""Train a model with several seeds and keep the scores in results/: the mean, the spread, and where they come from.

    python benchmarks/seeds.py results/mnist-small.json capsnet-mnist-small --max-seconds 180

Finished runs under runs/ are not repeated, unfinished ones are gone on with. `--also` scores them on another set too,
such as the viewpoints that were not trained on.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from torchcaps.experiments.fingerprint import of_training
from torchcaps.training.runs import manifest

COMMON = ("data", "model", "parameters", "metric", "images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="the file to write, such as results/mnist-small.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--also", metavar="DATA", help="another test set")
    parser.add_argument("--note", default="", help="a sentence to keep with the result")
    arguments, train = parser.parse_known_args()
    runs = [arguments.runs / f"{arguments.result.stem}-seed{seed}" for seed in range(arguments.seeds)]
    trials = [_trial(run, seed, train) for seed, run in enumerate(runs)]
    if arguments.also:
        trials = [
            {**trial, f"accuracy on {arguments.also}": _accuracy(run, arguments.also)}
            for run, trial in zip(runs, trials, strict=True)
        ]
        train = ["--also", arguments.also, *train]
    origin = _origin(runs[0])
    scores = [name for name, value in trials[0].items() if isinstance(value, float) and name != "seconds"]
    summary = {
        "command": f"python benchmarks/seeds.py {arguments.result} --seeds {arguments.seeds} {' '.join(train)}",
        **{name: trials[0][name] for name in COMMON},
        "seeds": len(trials),
        "mean": {name: statistics.mean(trial[name] for trial in trials) for name in scores},
        "deviation": {name: statistics.stdev(t[name] for t in trials) if len(trials) > 1 else None for name in scores},
        "note": arguments.note,
        "machine": origin["machine"],
        "versions": origin["versions"],
        "commit": origin["commit"],
        "code": _code(trials[0], origin["commit"]),
        "trials": trials,
    }
    arguments.result.parent.mkdir(parents=True, exist_ok=True)
    arguments.result.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"{arguments.result}: accuracy {summary['mean']['accuracy']:.4%}")


def _trial(out: Path, seed: int, train: list[str]) -> dict:
    asked = ["train", *train, "--seed", str(seed)]
    command = [*asked, "--out", str(out)]
    # A run may have been moved since.
    if (out / "manifest.json").exists() and f"{' '.join(asked)} --out " not in _origin(out)["command"]:
        sys.exit(f"{out} was made by another command, {_origin(out)['command']}: remove it, or choose another result")
    if not (out / "result.json").exists():
        options = ["train", "--resume", "--out", str(out)] if (out / "config.json").exists() else command
        subprocess.run([sys.executable, "-m", "torchcaps", *options], check=True)
    return {**json.loads((out / "result.json").read_text()), "continued": _origin(out).get("continued", [])}


def _code(trial: dict, commit: str | None) -> str | None:
    """The fingerprint of the code, if it is the one that trained: runs that were finished before may be older."""
    same = commit is not None and commit == manifest({"train": {"seed": 0}}, {})["commit"]
    return of_training(trial["model"], trial["data"]) if same else None


def _origin(out: Path) -> dict:
    return json.loads((out / "manifest.json").read_text())


def _accuracy(run: Path, data: str) -> float:
    command = [sys.executable, "-m", "torchcaps", "evaluate", str(run), "--data", data, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["accuracy"]


if __name__ == "__main__":
    main()
