"""Write the measured parts of docs/how-to-choose-a-routing.md and docs/leaderboard.md from results/routings/.

python tools/routing_guide.py            # --check only says whether they are up to date
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.experiments.statistics import FEWEST_SEEDS, Estimate, adjusted, difference, verdict  # noqa: E402

CONTROL, CONTROLS = "uniform", ("uniform", "random")
ASKED = {"mnist": "MNIST", "multimnist": "MultiMNIST", "affnist": "affNIST-style"}
SAME_SECONDS = "the seconds of training are the same for all, so an expensive routing sees fewer images"
SAME_STEPS = "the steps of training are the same for all"
COMMAND = "torchcaps reproduce routings --preset standard --jobs 2"
PRESETS = ("paper", "standard", "quick")

Table = dict[str, dict[str, Any]]


def load(results: Path) -> dict[str, Any] | None:
    """The summary row of the experiment, of the longest preset that was run."""
    for preset in PRESETS:
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


def separated(rows: Table, from_: str, asked: str) -> dict[str, Estimate]:
    """How far each other routing is ahead of one, seed by seed, with the p-values corrected for their number."""
    others = [name for name in rows if name != from_]
    values = {name: rows[name][asked]["accuracy"]["values"] for name in rows}
    estimates = adjusted([difference(values[name], values[from_]) for name in others])
    return dict(zip(others, estimates, strict=True))


def named(names: list[str], otherwise: str = "none of them") -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted) or otherwise


def advice(rows: Table, shared: str = SAME_STEPS) -> list[str]:
    """What the table says, one or two sentences for each question, with numbers and names taken from the table."""
    lines = []
    for asked, title in ASKED.items():
        ranked = sorted(rows, key=lambda name: -rows[name][asked]["accuracy"]["mean"])
        best = ranked[0]
        from_best, against = separated(rows, best, asked), separated(rows, CONTROL, asked)
        level = [name for name in ranked[1:] if not from_best[name].decided]
        ahead = [name for name in ranked if name in against and verdict(against[name]) == "holds"]
        behind = [name for name in ranked if name in against and verdict(against[name]) == "refuted"]
        lines.append(
            f"**{title}.** `{best}` scored best, {score(rows[best], asked)}; not separated from it by these seeds: "
            f"{named(level)}. Better than uniform couplings ({score(rows[CONTROL], asked)}), by a paired t-test over "
            f"at least {FEWEST_SEEDS} seeds: {named(ahead)}; worse: {named(behind)}."
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
    budget = _budget(setting)
    head = (
        f"`{result['command']}` trained each network for {budget} with {seeds} seed"
        f"{'s' if seeds != 1 else ''} ({machine['processor']}, torch {result['versions']['torch']}, "
        f"commit {result['commit']}). Entropy, changed answers and dead capsules are those on MultiMNIST; ± is the "
        "sample's standard deviation over seeds."
    )
    return "\n\n".join([head, table(rows), *advice(rows, SAME_STEPS if setting.get("steps") else SAME_SECONDS)])


def _budget(setting: dict[str, Any]) -> str:
    """Results of earlier versions had a budget in seconds, or the same steps for both sets."""
    steps = setting.get("steps")
    if isinstance(steps, dict):
        return f"{steps['translated']:,} steps on single digits and {steps['multimnist']:,} on overlapping ones"
    return f"{steps:,} steps" if steps else f"{setting['seconds']:g} s"


LEADERBOARD = """\
All routings and both controls (`uniform`, `random`) in the same small network, with the same steps and seeds and a
learning rate of their own each, chosen on held-out images. The last column of a table says whether a routing is better
than equal couplings: paired two-sided t-test over the seeds, corrected for the number of routings in that table (Holm);
[the verdicts](RESULTS.md#routings-standard) are corrected for all claims of the experiment at once, and decide less.
[How to choose a routing](how-to-choose-a-routing.md) has what each of them does and costs.
"""


def leaderboard(result: dict[str, Any] | None) -> str:
    """For each set the routings by their accuracy, and which are decided."""
    if result is None or not isinstance(result["configuration"].get("steps"), dict):
        return f"{LEADERBOARD}\nNot measured yet: `{COMMAND}` fills this in.\n"
    rows, setting = result["values"], result["configuration"]
    lines = [LEADERBOARD, f"`{result['command']}`: {_budget(setting)}; commit {result['commit']}."]
    for asked, title in ASKED.items():
        against = separated(rows, CONTROL, asked)
        task = "multimnist" if asked == "multimnist" else "translated"
        lines += ["", f"### {title}", "", "| | routing | accuracy | rate | ahead of `uniform` (95 % interval) | p | |"]
        lines.append("|---:|---|---:|---:|---:|---:|---|")
        ranked = sorted(rows, key=lambda name: -rows[name][asked]["accuracy"]["mean"])
        for place, name in enumerate(ranked, start=1):
            rate = setting["rates"][f"{name}-{task}"]
            cells = [str(place), f"`{name}`", score(rows[name], asked), f"{rate:g}", *_against(against.get(name))]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _against(estimate: Estimate | None) -> tuple[str, str, str]:
    if estimate is None:
        return "", "", "the control"
    words = {"holds": "better", "refuted": "worse", "undecided": "not separated"}
    ends = f"{100 * estimate.low:+.2f} to {100 * estimate.high:+.2f} points" if estimate.n > 1 else ""
    p = estimate.p if estimate.adjusted is None else estimate.adjusted
    return ends, f"{p:.2g}", words[verdict(estimate)]


def render(text: str, result: dict[str, Any] | None, written: Callable[[dict[str, Any] | None], str] = measured) -> str:
    """The page with its measured part written anew."""
    block = written(result)
    return re.sub(r"(<!-- measured -->\n).*?(<!-- /measured -->)", lambda m: f"{m[1]}{block}\n{m[2]}", text, flags=re.S)


def main() -> None:
    found = load(ROOT / "results")
    for name, written in (("how-to-choose-a-routing.md", measured), ("leaderboard.md", leaderboard)):
        page = ROOT / "docs" / name
        fresh = render(page.read_text(), found, written)
        if "--check" not in sys.argv:
            page.write_text(fresh)
        elif page.read_text() != fresh:
            sys.exit(f"{name} is not what results/ says: run python tools/routing_guide.py")


if __name__ == "__main__":
    main()
