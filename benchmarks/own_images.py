"""CIFAR-10 and Fashion-MNIST as a user would bring them: folders of PNG files, and the command line alone.

    python benchmarks/own_images.py results/own-images.json --cifar10-seconds 1800 --fashion-mnist-seconds 120

Each set is written out as train/CLASS/*.png and test/CLASS/*.png; a capsule network and a CNN with the same backbone
train on it for the same time; the capsule network then predicts, explains and exports. Finished runs are not repeated.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

from torchcaps import data as named
from torchcaps.data.sets import ImageSet

SETS = {"cifar10": "natural", "fashion-mnist": "shift"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="the file to write, such as results/own-images.json")
    parser.add_argument("--runs", type=Path, default=Path("runs/own-images"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="a sentence to keep with the result")
    for name, seconds in (("cifar10", 1800), ("fashion-mnist", 120)):
        parser.add_argument(f"--{name}-seconds", type=float, default=seconds)
    arguments = parser.parse_args()
    rows = []
    for name, augment in SETS.items():
        seconds = getattr(arguments, f"{name.replace('-', '_')}_seconds")
        folder = write_folder(name, arguments.runs / f"{name}-png")
        for model in ("capsnet", "cnn"):
            run = arguments.runs / f"{name}-{model}"
            flags = ["--data", str(folder), "--augment", augment, "--max-seconds", f"{seconds:g}"]
            train(model, [*flags, "--seed", str(arguments.seed)], run)
            row = json.loads((run / "result.json").read_text())
            used = use(run, folder / "test") if model == "capsnet" else {}
            rows.append({"set": name, "model": model, "command": f"torchcaps train {model} {' '.join(flags)}"} | used)
            kept = ("accuracy", "images", "parameters", "seconds", "steps", "images_seen", "seed", "reconstruction_mse")
            rows[-1] |= {key: row[key] for key in kept if key in row}
    manifest = json.loads((arguments.runs / "cifar10-capsnet" / "manifest.json").read_text())
    summary = {
        "command": f"python {' '.join(sys.argv)}",
        **{key: manifest[key] for key in ("machine", "versions", "commit")},
        "note": arguments.note,
        "rows": rows,
    }
    arguments.result.write_text(json.dumps(summary, indent=2) + "\n")
    for row in rows:
        print(f"{row['set']:>14} {row['model']:>8} {row['accuracy']:.2%} after {row['seconds']:.0f} s")


def write_folder(name: str, folder: Path) -> Path:
    """The set as PNG files, one folder a class; a folder that is already whole is left alone."""
    done = folder / ".whole"
    if not done.exists():
        for split in ("train", "test"):
            save(named.images(name, split), folder / split)
        done.touch()
    return folder


def save(images: ImageSet, folder: Path) -> None:
    """One PNG file for each, in a folder for each class."""
    for title in images.classes:
        (folder / title).mkdir(parents=True, exist_ok=True)
    for i, (pixels, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
        picture = Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy())
        picture.save(folder / images.classes[label] / f"{i:05}.png", compress_level=1)


def train(model: str, flags: list[str], run: Path) -> None:
    if not (run / "result.json").exists():
        begun = (run / "config.json").exists()
        torchcaps("train", *(["--resume"] if begun else [model, *flags]), "--out", str(run))


def use(run: Path, test: Path) -> dict[str, object]:
    """Predict, explain and export with the commands; what each gave."""
    few = [str(path) for folder in sorted(test.iterdir()) for path in sorted(folder.glob("*.png"))[:20]]
    began = time.perf_counter()
    predictions = json.loads(torchcaps("predict", str(run), *few, "--json"))
    seconds = time.perf_counter() - began
    right = sum(row["label"] == Path(row["image"]).parent.name for row in predictions)
    torchcaps("explain", str(run), few[0], "--out", str(run / "explained.html"))
    exported = json.loads(torchcaps("export", str(run), "--json"))
    return {
        "predicted": {"images": len(predictions), "right": right, "seconds": round(seconds, 1)},
        "explained": (run / "explained.html").stat().st_size,
        "exported": exported,
    }


def torchcaps(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "torchcaps", *arguments], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


if __name__ == "__main__":
    main()
