"""Write the tables in README.md from the files in results/.

python benchmarks/tables.py            # --check only says whether they are up to date
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def _result(name: str) -> dict | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _seeds(result: dict, score: str = "accuracy") -> str:
    spread = result["deviation"][score]
    return f"{result['mean'][score]:.2%}" + (f" ± {spread:.2%}" if spread is not None else "")


def _row(name: str, what: str, reference: str) -> str | None:
    result = _result(name)
    if result is None:
        return None
    seconds = max(trial["seconds"] for trial in result["trials"])
    return (
        f"| {what} | {_seeds(result)} | {result['seeds']} | {result['parameters'] / 1e6:.1f} M | {seconds:,.0f} s | "
        f"{reference} | [file](results/{name}.json) |"
    )


def _own_images(name: str, what: str, reference: str) -> list[str]:
    """A set that was brought as a folder: the capsule network, then the CNN with the same backbone and time."""
    rows = [row for row in (_result("own-images") or {"rows": []})["rows"] if row["set"] == name]
    titles = {"capsnet": (what, reference), "cnn": ("the same, `cnn`", "-")}
    return [
        f"| {titles[row['model']][0]} | {row['accuracy']:.2%} | 1 | {row['parameters'] / 1e6:.1f} M | "
        f"{row['seconds']:,.0f} s | {titles[row['model']][1]} | [file](results/own-images.json) |"
        for row in rows
    ]


def table() -> str:
    rows = [
        _row("mnist-small", "MNIST, `capsnet-mnist-small`, accuracy", "99.75 % (paper, 8.2 M)"),
        _row("multimnist-iou80", "MultiMNIST with IoU ≥ 0.8, `capsnet-multimnist-small`, both digits right",
             "48.6 % in 395 s (NumPy reproduction)"),
        _row("cnn-multimnist-iou80", "the same, a CNN of the same cost", "-"),
        _row("cnn-paper-multimnist-iou80", "the same, `cnn-multimnist`", "-"),
        _row("multimnist-shipped", "MultiMNIST as in the paper, the weights in the package, both digits right",
             "94.8 % (paper, 11.4 M), 91.9 % (its CNN)"),
        *_own_images("cifar10", "CIFAR-10 as a folder of PNG files, `capsnet`, accuracy", "89.4 % (paper, 7 networks)"),
        *_own_images("fashion-mnist", "Fashion-MNIST as a folder of PNG files, `capsnet`, accuracy", "-"),
    ]  # fmt: skip
    head = "| on 2 CPU cores | measured | seeds | parameters | training | published | |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *(row for row in rows if row)])


def render(text: str) -> str:
    return re.sub(r"(<!-- results -->\n).*?(<!-- /results -->)", lambda m: f"{m[1]}{table()}\n{m[2]}", text, flags=re.S)


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text()
    fresh = render(text)
    if "--check" in sys.argv:
        sys.exit(0 if fresh == text else "README.md is not what results/ says: run python benchmarks/tables.py")
    readme.write_text(fresh)


if __name__ == "__main__":
    main()
