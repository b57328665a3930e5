"""The measured part of docs/how-to-choose-a-routing.md: a table, and what it says, from the files in `results/`."""

import json
import re
from pathlib import Path
from typing import Any

CONTROL, CONTROLS = "uniform", ("uniform", "random")
ASKED = {"mnist": "MNIST", "multimnist": "MultiMNIST", "affnist": "affNIST-style"}
SAME_SECONDS = "the seconds of training are the same for all, so an expensive routing sees fewer images"
SAME_STEPS = "the steps of training are the same for all"
COMMAND = "torchcaps reproduce routings"

Table = dict[str, dict[str, Any]]


def load(results: Path) -> dict[str, Any] | None:
    """The summary row of the experiment: of the long preset if it was run, else of the quick one."""
    for preset in ("paper", "quick"):
        path = results / "routings" / preset / "rows.json"
        if path.exists():
            return json.loads(path.read_text())["rows"]["table"]
    return None


def score(row: dict[str, Any], asked: str) -> str:
    cell = row[asked]["accuracy"]
    spread = "" if cell["spread"] is None else f" ± {100 * cell['spread']:.2f}"
    return f"{100 * cell['mean']:.2f}{spread} %"


def share(row: dict[str, Any], measure: str, asked: str = "multimnist") -> str:
    return f"{100 * row[asked][measure]['mean']:.1f} %"


def table(rows: Table) -> str:
    head = ["routing", *ASKED.values(), "ms a step", "routing alone, ms", "MB a step", "steps", "entropy", "changed"]
    head += ["dead children", "dead classes"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name, row in rows.items():
        cost = row["cost"]
        cells = [f"`{name}`", *(score(row, asked) for asked in ASKED)]
        cells += [f"{cost['step_ms']:.0f}", f"{cost['routing_ms']:.1f}", f"{cost['step_mb']:.0f}"]
        cells += [f"{row['multimnist']['steps']['mean']:.0f}", f"{row['multimnist']['entropy']['mean']:.2f}"]
        cells += [share(row, measure) for measure in ("changed", "dead_primary", "dead_classes")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gap(rows: Table, name: str, other: str, asked: str) -> tuple[float, float]:
    """Mean and sample deviation of the difference seed by seed; an infinite deviation where there is one seed."""
    pairs = zip(rows[name][asked]["accuracy"]["values"], rows[other][asked]["accuracy"]["values"], strict=True)
    gaps = [a - b for a, b in pairs]
    mean = sum(gaps) / len(gaps)
    if len(gaps) == 1:
        return mean, float("inf")
    return mean, (sum((x - mean) ** 2 for x in gaps) / (len(gaps) - 1)) ** 0.5


def named(names: list[str], otherwise: str = "none of them") -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted) or otherwise


def advice(rows: Table, shared: str = SAME_STEPS) -> list[str]:
    """What the table says, one or two sentences for each question, with numbers and names taken from the table."""
    lines = []
    for asked, title in ASKED.items():
        ranked = sorted(rows, key=lambda name: -rows[name][asked]["accuracy"]["mean"])
        best = ranked[0]
        level = [name for name in ranked[1:] if gap(rows, best, name, asked)[0] <= gap(rows, best, name, asked)[1]]
        against = {name: gap(rows, name, CONTROL, asked) for name in rows if name != CONTROL}
        ahead = [name for name in ranked if name in against and against[name][0] > against[name][1]]
        behind = [name for name in ranked if name in against and -against[name][0] > against[name][1]]
        lines.append(
            f"**{title}.** `{best}` scored best, {score(rows[best], asked)}; not separated from it by these seeds: "
            f"{named(level)}. Better than uniform couplings ({score(rows[CONTROL], asked)}) by more than the spread of "
            f"the difference: {named(ahead)}; worse: {named(behind)}."
        )
    cheap = sorted(rows, key=lambda name: rows[name]["cost"]["step_ms"])
    first, last = (rows[name]["cost"]["step_ms"] for name in (cheap[0], cheap[-1]))
    lines.append(
        f"**Cost.** A step takes {first:.0f} ms with `{cheap[0]}` and {last:.0f} ms, {last / first:.1f} times as long, "
        f"with `{cheap[-1]}`; {shared}."
    )
    routings = [name for name in rows if name not in CONTROLS]
    moved = sorted(routings, key=lambda name: -rows[name]["multimnist"]["changed"]["mean"])
    idle = [name for name in routings if rows[name]["multimnist"]["changed"]["mean"] < 0.01]
    lines.append(
        f"**Effect of the couplings.** Making all couplings of the trained network equal changes "
        f"{share(rows[moved[0]], 'changed')} of the answers on MultiMNIST for `{moved[0]}`, the most; less than 1 % "
        f"for {named(idle)}."
    )
    sharp = sorted(routings, key=lambda name: rows[name]["multimnist"]["entropy"]["mean"])
    lines.append(
        f"**Parse tree.** The couplings are closest to one parent for each child with `{sharp[0]}` (entropy "
        f"{rows[sharp[0]]['multimnist']['entropy']['mean']:.2f} of 1)."
    )
    return lines


def measured(result: dict[str, Any] | None) -> str:
    if result is None:
        return f"Not measured yet: `{COMMAND}` fills this in."
    rows, machine, setting = result["values"], result["machine"], result["configuration"]
    seeds = len(next(iter(rows.values()))["mnist"]["accuracy"]["values"])
    # Results of earlier versions had a budget in seconds.
    budget = f"{setting['steps']:,} steps" if setting.get("steps") else f"{setting['seconds']:g} s"
    head = (
        f"`{result['command']}` trained each network for {budget} with {seeds} seed"
        f"{'s' if seeds != 1 else ''} ({machine['processor']}, torch {result['versions']['torch']}, "
        f"commit {result['commit']}). Entropy, changed answers and dead capsules are those on MultiMNIST; ± is the "
        "sample's standard deviation over seeds."
    )
    return "\n\n".join([head, table(rows), *advice(rows, SAME_STEPS if setting.get("steps") else SAME_SECONDS)])


def render(text: str, result: dict[str, Any] | None) -> str:
    """The page with its measured part written anew."""
    block = measured(result)
    return re.sub(r"(<!-- measured -->\n).*?(<!-- /measured -->)", lambda m: f"{m[1]}{block}\n{m[2]}", text, flags=re.S)
