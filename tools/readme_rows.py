"""The rows of the README's table: capsules and their control side by side, from the experiments in `standard`."""

import json
import sys
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.experiments.base import Study  # noqa: E402
from torchcaps.experiments.freshness import is_fresh  # noqa: E402
from torchcaps.experiments.statistics import FEWEST_SEEDS, difference  # noqa: E402


def read_result(name: str) -> dict | None:
    path = ROOT / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def decided() -> str:
    """Capsules and their control side by side, for the README. What is older than its code is left out."""
    digits = (_overlapping(), _evened(), _iterations(), _numpy_protocol(), _mnist(), _few_images())
    rows = [row for row in (*digits, _poses(), _house_numbers(), *_toys(), *_novel()) if row]
    return "\n".join(["| | capsules | control |\n|---|---|---|", *rows])


def _overlapping() -> str | None:
    what = "Two digits on top of each other (IoU ≥ 0.8), both right, budgets of equal cost (395 s)"
    return _beside_cnn("overlap-controls", "capsules", what=what, claim="better than CNN of the same backbone, by")


def _mnist() -> str | None:
    return _beside_cnn(
        "table1",
        "mnist-capsnet-r3-decoder",
        "mnist-cnn",
        what="MNIST (paper: 99.75 %, its CNN 99.61 %)",
        names=("capsules", "a CNN of the same backbone, its width and decay searched"),
        claim="MNIST: CapsNet errs less than the CNN, by",
    )


def _few_images() -> str | None:
    """Accuracies after training with more and more images of each class."""
    summary = read_result("less-data/standard/summary")
    sizes = (10, 30, 100, 300, 1000)
    found = {kind: [finished("less-data", f"{kind}-{size}") for size in sizes] for kind in ("capsnet", "cnn")}
    if summary is None or any(len(rows) < FEWEST_SEEDS for groups in found.values() for rows in groups):
        return None
    ours, control = (
        ", ".join(f"{100 * mean(row['accuracy'] for row in rows.values()):.1f}" for rows in groups) + " %"
        for groups in found.values()
    )
    p, steps = max(verdict["p"] for verdict in summary["verdicts"]), found["cnn"][0][0]["steps"]
    what = f"MNIST from {', '.join(map(str, sizes[:-1]))} and {sizes[-1]:,} images of each digit; p ≤ {p:.2g}"
    cell = f"{ours} [capsules](results/less-data/standard), {_trainings(FEWEST_SEEDS)} of {steps:,} steps each"
    return f"| {what} | {cell} | {control} a CNN of the same backbone |"


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
    cnn = [found["accuracy"] for found in finished("table1", "multimnist-cnn").values()]
    p = _p_value("table1", "MultiMNIST: CapsNet errs less than the CNN, by")
    if row is None or len(cnn) < FEWEST_SEEDS or p is None:
        return None
    return f"{row.removesuffix(' |')}; {spread(cnn)} a CNN of the same backbone (p = {p:.2g}) |"


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
    claim = "norb-style: the CapsNet errs less than a CNN of its cost, by"
    dynamic = _beside_cnn("smallnorb", "capsnet-norb-style", "cnn-norb-style", what=f"{what}, 32x32", claim=claim)
    photographs = _beside_cnn(
        "smallnorb",
        "capsnet-eth80",
        "cnn-eth80",
        what="Things never seen in training, photographs of 8 categories (ETH-80), 32x32",
        claim="eth80: the CapsNet errs less than a CNN of its cost, by",
    )
    networks = (f"{network}-norb-style" for network in ("matrix-smallnorb-stem", "cnn-smallnorb-norm"))
    names = ("matrix capsules with EM routing", "a CNN of as many parameters")
    claim = "norb-style: error of the CNN with batch normalisation above that of matrix capsules, by"
    return [
        dynamic,
        photographs,
        _beside_cnn("smallnorb-em", *networks, what=f"{what}, small networks", names=names, claim=claim),
    ]


def _novel() -> list[str]:
    """How many fewer errors matrix capsules make at viewpoints never shown, where both err alike at familiar ones."""
    kept, summary = read_result("viewpoints/standard/rows"), read_result("viewpoints/standard/summary")
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
    capsules, controls = (finished(experiment, name) for name in (network, cnn))
    seeds = sorted(capsules.keys() & controls.keys())
    if len(seeds) < 2:
        return None
    accuracy = [[rows[seed]["accuracy"] for seed in seeds] for rows in (capsules, controls)]
    estimate = difference(*accuracy)
    cells = [
        f"{spread(values)} [{who}, `{rows[seeds[0]]['model']}`](results/{experiment}/standard), "
        f"{_trainings(len(values))} of {rows[seeds[0]]['steps']:,} steps"
        for who, rows, values in zip(names, (capsules, controls), accuracy, strict=True)
    ]
    planned = _p_value(experiment, claim)
    tested = f"; p = {estimate.p if planned is None else planned:.2g}" if estimate.enough else ""
    return f"| {what}{tested} | {' | '.join(cells)} |"


def _p_value(experiment: str, claim: str | None) -> float | None:
    """Of a claim of an experiment in `standard`."""
    verdicts = (read_result(f"{experiment}/standard/summary") or {"verdicts": []})["verdicts"]
    return next((verdict["p"] for verdict in verdicts if verdict["claim"] == claim), None)


def _evened() -> str | None:
    """What the weights in the package answer with the couplings that routing finds, and with equal ones."""
    name = "evened-capsnet-multimnist-wide"
    result = read_result(name)
    if result is None or not is_fresh(result):
        return None
    accuracy, link = result["accuracy"], f"(results/{name}.json)"
    what = f"What routing decides: MultiMNIST as in the paper (94.8 %), both digits right; p = {result['p']:.1g}"
    usual = f"{accuracy[str(result['iterations'])]:.2%} [the weights in the package, `{result['model']}`]{link}"
    return f"| {what} | {usual} | {accuracy['1']:.2%} [the same with equal couplings]{link} |"


def _numpy_protocol() -> str | None:
    rows, summary = finished("seed003", "ink-boxes"), read_result("seed003/standard/summary")
    if len(rows) < FEWEST_SEEDS or summary is None:
        return None
    values, first = [row["accuracy"] for row in rows.values()], summary["verdicts"][0]
    what = "IoU ≥ 0.8 from 6,000 fixed pairs in 8 epochs, the protocol of a NumPy reproduction, both digits right"
    ours = f"{spread(values)} [that network here](results/seed003/standard), {_trainings(len(values))}"
    return f"| {what}; p = {first['p']:.1g} | {ours} | {first['paper']:.1%} that reproduction |"


def _poses() -> str | None:
    """How well a linear map reads off what was done to a digit: from its capsule, and from a CNN's last layer."""
    kept, summary = read_result("equivariance/standard/rows"), read_result("equivariance/standard/summary")
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


def finished(experiment: str, network: str) -> dict[int, dict]:
    """By seed, what the trainings of a network measured that are finished, unless their code has changed since."""
    study = Study(experiment, "standard", root=ROOT)
    rows = {seed: study.kept(f"{network}-{seed}") for seed in range(FEWEST_SEEDS)}
    return {seed: row["values"] for seed, row in rows.items() if row and is_fresh(row)}


def spread(values: list[float]) -> str:
    return f"{mean(values):.2%} ± {stdev(values):.2%}"


def _trainings(seeds: int) -> str:
    return f"{seeds} training{'s' if seeds > 1 else ''}"
