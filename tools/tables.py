"""Write the tables in README.md, docs/scores.md and docs/performance.md from the files in results/.

python tools/tables.py            # --check only says whether they are up to date
"""

import json
import re
import sys
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from readme_rows import decided, finished, read_result, spread  # noqa: E402

from torchcaps.experiments.freshness import is_fresh  # noqa: E402
from torchcaps.experiments.statistics import FEWEST_SEEDS  # noqa: E402

OLDER = " †"
FOOTNOTE = "† older than the code that it describes (`torchcaps reproduce --stale`)"


def _seeds(result: dict) -> str:
    deviation = result["deviation"]["accuracy"]
    return f"{result['mean']['accuracy']:.2%}" + (f" ± {deviation:.2%}" if deviation is not None else "")


def _row(name: str, what: str, reference: str) -> str | None:
    result = read_result(name)
    if result is None:
        return None
    seconds, parameters = max(trial["seconds"] for trial in result["trials"]), _millions(result["parameters"])
    return (
        f"| {what}{_age(result)} | {_seeds(result)} | {result['seeds']} | {parameters} | {seconds:,.0f} s | "
        f"{reference} | [file](results/{name}.json) |"
    )


def _trained(experiment: str, network: str, what: str, reference: str) -> str | None:
    """The trainings of an experiment in `standard`, of one network."""
    rows = list(finished(experiment, network).values())
    if len(rows) < FEWEST_SEEDS:
        return None
    return (
        f"| {what} | {spread([row['accuracy'] for row in rows])} | {len(rows)} | {_millions(rows[0]['parameters'])} | "
        f"{rows[0]['steps']:,} steps, 1 core | {reference} | [folder](results/{experiment}/standard) |"
    )


def _age(result: dict) -> str:
    return "" if is_fresh(result) else OLDER


def _steps(card: dict) -> int:
    """Of these weights and of those that their training began with."""
    return sum(part["recipe"]["steps"] for part in (card, *card["began_with"]))


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:.2g} M"


def _shipped(name: str) -> str:
    """What the card of the weights in the package says."""
    place = f"torchcaps/models/weights/{name}.json"
    card = json.loads((ROOT / place).read_text())
    lost = card["corruptions"]["corruptions"]
    points = [100 * lost[name]["lost"] for name in ("grey-pixel", "specks", "noise", "contrast", "background")]
    return (
        f"| the same, the weights in the package, `{name}` (lost with a grey pixel, specks, noise, "
        f"half the contrast or a grey ground: at most {max(points):.1f} points; turned by 15 degrees: "
        f"{100 * lost['rotation']['lost']:.1f}) | {card['scores']['multimnist']['accuracy']:.2%} | 1 | "
        f"{_millions(card['parameters'])} | {_steps(card):,} steps | 94.8 % (paper, 11.4 M) | "
        f"[card]({place}) |"
    )


def _photographs() -> list[str]:
    """The weights in the package for other sets than digits."""
    published = {
        "capsnet-cifar10-small": ("CIFAR-10", "89.4 % (paper, 7 networks)"),
        "capsnet-svhn-small": ("SVHN, rebuilt from the full-number images", "95.7 % (paper)"),
        "capsnet-fashion-small": ("Fashion-MNIST", "94.7 % (the best capsule network)"),
        "capsnet-affnist-small": ("translated MNIST", "99.23 % (paper, 13.4 M)"),
        "capsnet-smallnorb-small": ("norb-style, toys never seen", "-"),
    }
    rows = []
    for name, (what, reference) in published.items():
        place = f"torchcaps/models/weights/{name}.json"
        card = json.loads((ROOT / place).read_text())
        score = next(iter(card["scores"].values()))
        rows.append(
            f"| {what}, the weights in the package, `{name}`, accuracy | {score['accuracy']:.2%} | 1 | "
            f"{_millions(card['parameters'])} | {card['recipe']['steps']:,} steps | {reference} | [card]({place}) |"
        )
    return rows


def _own_images(name: str, what: str, reference: str) -> list[str]:
    """A set that was brought as a folder: the capsule network, then the CNN with the same backbone and time."""
    rows = [row for row in (read_result("own-images") or {"rows": []})["rows"] if row["set"] == name]
    titles = {"capsnet": (what, reference), "cnn": ("the same, `cnn`", "-")}
    return [
        f"| {titles[row['model']][0]}{_age({**row, 'data': name})} | {row['accuracy']:.2%} | 1 | "
        f"{_millions(row['parameters'])} | {row['seconds']:,.0f} s | {titles[row['model']][1]} | "
        f"[file](results/own-images.json) |"
        for row in rows
    ]


def table() -> str:
    rows = [
        _trained("equivariance", "capsnet", "MNIST, `capsnet-mnist-small`, accuracy", "99.75 % (paper, 8.2 M)"),
        _trained("equivariance", "cnn", "the same, a CNN of the same backbone", "99.61 % (the paper's, 35.4 M)"),
        _row("mnist-paper", "MNIST, `capsnet-mnist`, the paper's network, accuracy (99.59 % after 10 and after 14 of "
             "19 epochs, when it was looked at too)", "99.75 % (paper, three trials)"),
        _trained("overlap-controls", "capsules", "MultiMNIST with IoU ≥ 0.8, `capsnet-multimnist-fine`, both digits "
                 "right, 395 s of two cores", "48.6 % in 395 s (NumPy reproduction)"),
        _trained("overlap-controls", "cnn", "the same, a CNN of the same backbone, 395 s", "-"),
        _trained("overlap-controls", "one-iteration", "the same, capsules with one iteration", "-"),
        _trained("overlap-controls", "uniform", "the same, capsules with equal couplings", "-"),
        _trained("overlap-controls", "paper-cnn", "the paper's CNN in a fifth of that time", "-"),
        _row("multimnist-shipped", "MultiMNIST as in the paper, `capsnet-multimnist-small` with a window by bounding "
             "box, both digits right", "94.8 % (paper, 11.4 M), 91.9 % (its CNN)"),
        _shipped("capsnet-multimnist-fine"),
        _shipped("capsnet-multimnist-wide"),
        _row("multimnist-paper", "the same, `capsnet-multimnist`, the paper's network", "94.8 % (paper)"),
        _trained("smallnorb", "capsnet-norb-style", "norb-style, toys never seen, `capsnet-smallnorb-small`, accuracy",
                 "-"),
        _trained("smallnorb", "cnn-norb-style", "the same, a CNN of the same backbone", "-"),
        _trained("svhn", "capsnet", "SVHN, rebuilt from the full-number images, `capsnet-svhn-small`, accuracy",
                 "95.7 % (paper)"),
        _trained("svhn", "cnn", "the same, a CNN of the same backbone", "-"),
        _row("cifar10-small", "CIFAR-10, `capsnet-cifar10-small`, 7,000 steps, each on one core beside another "
             "training, accuracy", "89.4 % (paper, 7 networks)"),
        *_photographs(),
        *_own_images("cifar10", "CIFAR-10 as a folder of PNG files, `capsnet`, accuracy", "89.4 % (paper, 7 networks)"),
        *_own_images("fashion-mnist", "Fashion-MNIST as a folder of PNG files, `capsnet`, accuracy", "-"),
    ]  # fmt: skip
    head = "| on 2 CPU cores | measured | seeds | parameters | training | published | |\n|---|---|---|---|---|---|---|"
    made = [row for row in rows if row]
    footnote = ["", FOOTNOTE] if any(OLDER in row for row in made) else []
    return "\n".join([head, *made, *footnote])


def scores() -> str:
    """The long table, for a page in docs/."""
    return re.sub(r"\]\((?=results/|torchcaps/)", "](../", table())


def bench() -> str:
    result = read_result("bench/bench")
    if result is None:
        return ""
    lines = [
        f"{_machine(result)}; `{result['command']}`, {result['seconds']:,.0f} s.",
        "",
        "| | batch | repeats | plain ms (range) | ours ms (range) | plain / ours | first call ms | peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        plain, ours = (
            "{:,.1f} ({:,.1f} to {:,.1f})".format(row[f"{twin}_ms"], *row[f"{twin}_spread_ms"])
            for twin in ("plain", "ours")
        )
        lines.append(
            f"| {row['name']} | {row['batch']} | {row['repeats']} | {plain} | {ours} | **{row['ratio']:.2f}** "
            f"| {row['plain_first_ms']:,.0f} / {row['ours_first_ms']:,.0f} "
            f"| {row['plain_mb']:,.0f} / {row['ours_mb']:,.0f} |"
        )
    return "\n".join(lines)


def profile(most: int = 8) -> str:
    """For each network its slowest operators, before on the left and after on the right."""
    result = read_result("bench/profile")
    if result is None:
        return ""
    lines = [f"{_machine(result)}, batch {result['batch']}; `{result['command']}`."]
    for network, twins in result["profiles"].items():
        columns = [[f"{row['operator']} {row['ms']:,.1f}" for row in twins[twin]["rows"][:most]] for twin in twins]
        heads = [f"{twin}: {twins[twin]['step_ms']:,.0f} ms a step" for twin in twins]
        lines += ["", f"| `{network}`, {' | '.join(heads)} |", "|---|---|"]
        lines += [f"| {' | '.join(pair)} |" for pair in zip_longest(*columns, fillvalue="")]
    return "\n".join(lines)


def quantise() -> str:
    result = read_result("bench/quantise")
    if result is None:
        return ""
    lines = [
        f"{_machine(result)}, batch {result['batch']}; `{result['command']}`.",
        "",
        "| | ms (range) |",
        "|---|---|",
    ]
    lines += [
        f"| {name} | {r['ms']:,.1f} ({r['range'][0]:,.1f} to {r['range'][1]:,.1f}) |"
        for name, r in result["rows"].items()
    ]
    return "\n".join(lines)


def _machine(result: dict) -> str:
    machine = result["machine"]
    return f"{machine['processor']}, {machine['threads']} threads, torch {result['versions']['torch']}"


PAGES = {
    "README.md": {"results": decided},
    "docs/scores.md": {"results": scores},
    "docs/performance.md": {"bench": bench, "profile": profile, "quantise": quantise},
}


def render(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """`text` with everything between a table's marks made again."""
    for name, make in tables.items():
        marks = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(marks, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.S)
    return text


def main() -> None:
    for name, tables in PAGES.items():
        page = ROOT / name
        text = page.read_text()
        fresh = render(text, tables)
        if "--check" not in sys.argv:
            page.write_text(fresh)
        elif fresh != text:
            sys.exit(f"{name} is not what results/ says: run python tools/tables.py")


if __name__ == "__main__":
    main()
