"""What to expect of few photographs: CIFAR-10 with 20 to 1,000 images a class, as folders, with the command line alone.

    python benchmarks/few_images.py results/few-images.json --steps 2000

A folder has train/CLASS/*.png, the first images of each class, and test/CLASS/*.png, the same 10,000 for all. Options
are what `torchcaps train capsnet --data FOLDER` and `cnn` choose by themselves. Finished runs are not repeated.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

from own_images import save, train

from torchcaps import data as named

COUNTS = (20, 100, 330, 1000)
SET = "cifar10-32"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="the file to write, such as results/few-images.json")
    parser.add_argument("--runs", type=Path, default=Path("runs/few-images"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    rows = []
    for count in COUNTS:
        folder = write_folder(count, arguments.runs / f"{count}-png")
        for model in ("capsnet", "cnn"):
            flags = ["--data", str(folder), "--steps", str(arguments.steps)]
            for seed in range(arguments.seeds):
                run = arguments.runs / f"{count}-{model}-{seed}"
                train(model, [*flags, "--seed", str(seed)], run)
                rows.append({
                    "images a class": count,
                    "model": model,
                    "seed": seed,
                    "command": f"torchcaps train {model} {' '.join(flags)} --seed {seed}",
                    **_scores(run),
                })  # fmt: skip
                print("{images a class:>5} {model:>8} {accuracy:.2%}, in training {training:.2%}".format(**rows[-1]))
    origin = json.loads((arguments.runs / f"{COUNTS[0]}-capsnet-0" / "manifest.json").read_text())
    summary = {
        "command": f"python {' '.join(sys.argv)}",
        **{key: origin[key] for key in ("machine", "versions", "commit")},
        "note": "training: varied images of the last tenth of the steps",
        "rows": rows,
    }
    arguments.result.write_text(json.dumps(summary, indent=2) + "\n")


def write_folder(count: int, folder: Path) -> Path:
    """The first images of each class, and all test images; a folder that is already whole is left alone."""
    done = folder / ".whole"
    if not done.exists():
        images = named.images(SET, "train")
        for label in range(len(images.classes)):
            save(images.take((images.labels == label).nonzero()[:count, 0]), folder / "train")
        save(named.images(SET, "test"), folder / "test")
        done.touch()
    return folder


def _scores(run: Path) -> dict[str, float]:
    result = json.loads((run / "result.json").read_text())
    with (run / "metrics.csv").open() as file:
        late = [float(row["train_accuracy"]) for row in csv.DictReader(file)]
    late = late[-max(1, len(late) // 10) :]
    kept = ("accuracy", "images", "parameters", "seconds", "steps", "images_seen")
    return {key: result[key] for key in kept} | {"training": sum(late) / len(late)}


if __name__ == "__main__":
    main()
