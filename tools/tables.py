"""Write the tables in README.md, docs/scores.md and docs/performance.md from the files in results/.

python tools/tables.py            # --check only says whether they are up to date
"""

import json
import re
import sys
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
sys.path.insert(0, str(ROOT))

from torchcaps.experiments.base import Study  # noqa: E402
from torchcaps.experiments.freshness import is_fresh  # noqa: E402
from torchcaps.experiments.statistics import FEWEST_SEEDS, difference  # noqa: E402

OLDER = " †"
FOOTNOTE = "† older than the code that it describes (`torchcaps reproduce --stale`)"


def _result(name: str) -> dict | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _seeds(result: dict, score: str = "accuracy") -> str:
    spread = result["deviation"][score]
    return f"{result['mean'][score]:.2%}" + (f" ± {spread:.2%}" if spread is not None else "")


def _row(name: str, what: str, reference: str, score: str = "accuracy") -> str | None:
    result = _result(name)
    if result is None:
        return None
    seconds, parameters = max(trial["seconds"] for trial in result["trials"]), _millions(result["parameters"])
    return (
        f"| {what}{_age(result)} | {_seeds(result, score)} | {result['seeds']} | {parameters} | {seconds:,.0f} s | "
        f"{reference} | [file](results/{name}.json) |"
    )


def _trained(experiment: str, network: str, what: str, reference: str) -> str | None:
    """The trainings of an experiment in `standard`, of one network."""
    rows = list(_finished(experiment, network).values())
    if len(rows) < FEWEST_SEEDS:
        return None
    return (
        f"| {what} | {_spread([row['accuracy'] for row in rows])} | {len(rows)} | {_millions(rows[0]['parameters'])} | "
        f"{rows[0]['steps']:,} steps, 1 core | {reference} | [folder](results/{experiment}/standard) |"
    )


def _age(result: dict) -> str:
    return "" if is_fresh(result) else OLDER


def _steps(card: dict) -> int:
    """Of these weights and of those that their training began with."""
    return sum(part["recipe"]["steps"] for part in (card, *card["began_with"]))


def _millions(parameters: int) -> str:
    return f"{parameters / 1e6:.2g} M"


def _shipped() -> str:
    """What the card of the weights in the package says."""
    place = "torchcaps/models/weights/capsnet-multimnist-fine.json"
    card = json.loads((ROOT / place).read_text())
    lost = card["corruptions"]["corruptions"]
    points = [100 * lost[name]["lost"] for name in ("grey-pixel", "specks", "noise", "contrast", "background")]
    return (
        f"| the same, the weights in the package, `capsnet-multimnist-fine` (lost with a grey pixel, specks, noise, "
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


def _viewpoints() -> list[str | None]:
    """Toys seen from where they were seen in training, and from elsewhere: the capsules, then the CNN."""
    files = {"norb-style-azimuth": "`matrix-smallnorb-small`", "norb-style-azimuth-cnn": "`cnn-smallnorb-small`"}
    return [
        _row(name, f"norb-style toys at {seen} azimuths, {model}, accuracy, on one core", "-", score)
        for name, model in files.items()
        for seen, score in {"familiar": "accuracy", "novel": "accuracy on norb-style:azimuth-novel"}.items()
    ]


def _own_images(name: str, what: str, reference: str) -> list[str]:
    """A set that was brought as a folder: the capsule network, then the CNN with the same backbone and time."""
    rows = [row for row in (_result("own-images") or {"rows": []})["rows"] if row["set"] == name]
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
        _row("multimnist-iou80", "MultiMNIST with IoU ≥ 0.8, `capsnet-multimnist-small` with a window by bounding "
             "box, both digits right",
             "48.6 % in 395 s (NumPy reproduction)"),
        _row("cnn-multimnist-iou80", "the same, a CNN of the same cost", "-"),
        _row("cnn-paper-multimnist-iou80", "the same, `cnn-multimnist`", "-"),
        _row("multimnist-shipped", "MultiMNIST as in the paper, `capsnet-multimnist-small` with a window by bounding "
             "box, both digits right", "94.8 % (paper, 11.4 M), 91.9 % (its CNN)"),
        _shipped(),
        _row("multimnist-paper", "the same, `capsnet-multimnist`, the paper's network", "94.8 % (paper)"),
        *_viewpoints(),
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


def decided() -> str:
    """Capsules and their control side by side, for the README. What is older than its code is left out."""
    digits = (_overlapping(), _evened(), _iterations(), _numpy_protocol(), _mnist())
    rows = [row for row in (*digits, _poses(), _house_numbers(), *_toys(), *_novel()) if row]
    return "\n".join(["| | capsules | control |\n|---|---|---|", *rows])


def _overlapping() -> str | None:
    what = "Two digits on top of each other (IoU ≥ 0.8), both right, budgets of equal cost (395 s)"
    return _beside_cnn("overlap-controls", "capsules", what=what)


def _mnist() -> str | None:
    return _beside_cnn(
        "table1",
        "mnist-capsnet-r3-decoder",
        "mnist-cnn",
        what="MNIST (paper: 99.75 %, its CNN 99.61 %)",
        names=("capsules", "a CNN of the same backbone, its width and decay searched"),
        claim="MNIST: CapsNet errs less than the CNN, by",
    )


def _iterations() -> str | None:
    """Three iterations beside one, and beside the CNN."""
    row = _beside_cnn(
        "table1",
        "multimnist-capsnet-r3-decoder",
        "multimnist-capsnet-r1-decoder",
        what="MultiMNIST as in the paper (94.8 %, with one iteration 92.5 %), both digits right, a short training",
        names=("three iterations of routing", "one iteration"),
        claim="MultiMNIST: 3 iterations err less than 1, by",
    )
    cnn = [found["accuracy"] for found in _finished("table1", "multimnist-cnn").values()]
    p = _p_value("table1", "MultiMNIST: CapsNet errs less than the CNN, by")
    if row is None or len(cnn) < FEWEST_SEEDS or p is None:
        return None
    return f"{row.removesuffix(' |')}; {_spread(cnn)} a CNN of the same backbone (p = {p:.2g}) |"


def _house_numbers() -> str | None:
    return _beside_cnn(
        "svhn",
        "capsnet",
        what="SVHN, rebuilt from the full-number images (paper: 95.7 %)",
        claim="the small CapsNet errs less than the CNN of its cost, by",
    )


def _toys() -> list[str | None]:
    """With dynamic routing, and with EM routing."""
    what = "Toys never seen in training, rendered here"
    claim = "the CapsNet errs less than a CNN of its cost, by"
    dynamic = _beside_cnn("smallnorb", "capsnet-norb-style", "cnn-norb-style", what=f"{what}, 32x32", claim=claim)
    networks = (f"{network}-norb-style" for network in ("matrix-smallnorb-stem", "cnn-smallnorb-norm"))
    names = ("matrix capsules with EM routing", "a CNN of as many parameters")
    claim = "error of the CNN with batch normalisation above that of matrix capsules, by"
    return [dynamic, _beside_cnn("smallnorb-em", *networks, what=f"{what}, small networks", names=names, claim=claim)]


def _novel() -> list[str]:
    """How many fewer errors matrix capsules make at viewpoints never shown, where both err alike at familiar ones."""
    kept, summary = _result("viewpoints/standard/rows"), _result("viewpoints/standard/summary")
    if kept is None or summary is None or not all(is_fresh(row, "viewpoints") for row in kept["rows"].values()):
        return []
    rows = []
    for data, things in (("norb-style", "Toys"), ("eth80", "Things on photographs (ETH-80)")):
        found = [verdict for verdict in summary["verdicts"] if verdict["claim"].startswith(f"{data}: at equal error")]
        if not found:
            continue
        what = f"{things} from azimuths, and from elevations, never shown, at equal error at familiar ones"
        link = "[matrix capsules](results/viewpoints/standard)"
        cells = [" and ".join(map(_compared, found[control::2])) for control in (0, 1)]
        ours = f"error of {link}, {_trainings(FEWEST_SEEDS)}: {cells[0]} than a CNN's"
        rows.append(f"| {what} | {ours} | {cells[1]} than that of a CNN with batch normalisation |")
    return rows


def _compared(verdict: dict) -> str:
    points = 100 * verdict["ours"]
    return f"{abs(points):.1f} points {'less' if points > 0 else 'more'} (p = {verdict['p']:.2g})"


def _beside_cnn(
    experiment: str,
    network: str,
    cnn: str = "cnn",
    *,
    what: str,
    names: tuple[str, str] = ("capsules", "a CNN of the same backbone"),
    claim: str | None = None,
) -> str | None:
    """Accuracies of the trainings that are finished, of the seeds that both networks have.

    The p-value is that of the experiment's claim, corrected for their number, or of a t-test of these accuracies alone.
    """
    capsules, controls = (_finished(experiment, name) for name in (network, cnn))
    seeds = sorted(capsules.keys() & controls.keys())
    if len(seeds) < 2:
        return None
    accuracy = [[rows[seed]["accuracy"] for seed in seeds] for rows in (capsules, controls)]
    estimate = difference(*accuracy)
    cells = [
        f"{_spread(values)} [{who}, `{rows[seeds[0]]['model']}`](results/{experiment}/standard), "
        f"{_trainings(len(values))} of {rows[seeds[0]]['steps']:,} steps"
        for who, rows, values in zip(names, (capsules, controls), accuracy, strict=True)
    ]
    planned = _p_value(experiment, claim)
    tested = f"; p = {estimate.p if planned is None else planned:.2g}" if estimate.enough else ""
    return f"| {what}{tested} | {' | '.join(cells)} |"


def _p_value(experiment: str, claim: str | None) -> float | None:
    """Of a claim of an experiment in `standard`."""
    verdicts = (_result(f"{experiment}/standard/summary") or {"verdicts": []})["verdicts"]
    return next((verdict["p"] for verdict in verdicts if verdict["claim"] == claim), None)


def _evened() -> str | None:
    """What the weights in the package answer with the couplings that routing finds, and with equal ones."""
    name = "evened-capsnet-multimnist-fine"
    result = _result(name)
    if result is None or not is_fresh(result):
        return None
    accuracy, link = result["accuracy"], f"(results/{name}.json)"
    what = f"What routing decides: MultiMNIST as in the paper (94.8 %), both digits right; p = {result['p']:.1g}"
    usual = f"{accuracy[str(result['iterations'])]:.2%} [the weights in the package, `{result['model']}`]{link}"
    return f"| {what} | {usual} | {accuracy['1']:.2%} [the same with equal couplings]{link} |"


def _numpy_protocol() -> str | None:
    rows, summary = _finished("seed003", "ink-boxes"), _result("seed003/standard/summary")
    if len(rows) < FEWEST_SEEDS or summary is None:
        return None
    values, first = [row["accuracy"] for row in rows.values()], summary["verdicts"][0]
    what = "IoU ≥ 0.8 from 6,000 fixed pairs in 8 epochs, the protocol of a NumPy reproduction, both digits right"
    ours = f"{_spread(values)} [that network here](results/seed003/standard), {_trainings(len(values))}"
    return f"| {what}; p = {first['p']:.1g} | {ours} | {first['paper']:.1%} that reproduction |"


def _poses() -> str | None:
    """How well a linear map reads off what was done to a digit: from its capsule, and from a CNN's last layer."""
    kept, summary = _result("equivariance/standard/rows"), _result("equivariance/standard/summary")
    if kept is None or summary is None or not all(is_fresh(row, "equivariance") for row in kept["rows"].values()):
        return None
    readouts = [
        ", ".join(
            f"{mean(kept['rows'][f'{network}-{seed}-{what}']['values']['readout'] for seed in range(FEWEST_SEEDS)):.2f}"
            for what in ("rotation", "scale", "shift")
        )
        for network in ("capsnet", "cnn")
    ]
    claims = [verdict for verdict in summary["verdicts"] if "read off" in verdict["claim"]]
    if any(verdict["verdict"] != "holds" for verdict in claims):
        return None
    p = max(verdict["p"] for verdict in claims)
    ours = f"{readouts[0]} [from its capsule](results/equivariance/standard), {_trainings(FEWEST_SEEDS)}"
    what = f"How far a digit was turned, resized, moved, read off by a linear map (R²); p ≤ {p:.2g}"
    return f"| {what} | {ours} | {readouts[1]} from the last hidden layer of a CNN of the same backbone |"


def _finished(experiment: str, network: str) -> dict[int, dict]:
    """By seed, what the trainings of a network measured that are finished, unless their code has changed since."""
    study = Study(experiment, "standard", root=ROOT)
    rows = {seed: study.kept(f"{network}-{seed}") for seed in range(FEWEST_SEEDS)}
    return {seed: row["values"] for seed, row in rows.items() if row and is_fresh(row)}


def _spread(values: list[float]) -> str:
    return f"{mean(values):.2%} ± {stdev(values):.2%}"


def _trainings(seeds: int) -> str:
    return f"{seeds} training{'s' if seeds > 1 else ''}"


def bench() -> str:
    result = _result("bench/bench")
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
    result = _result("bench/profile")
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
    result = _result("bench/quantise")
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
