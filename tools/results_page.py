"""Write docs/RESULTS.md: every experiment in results/, its verdicts and figures. The same files give the same bytes.

python tools/results_page.py            # --check only says whether it is up to date
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.experiments import EXPERIMENTS  # noqa: E402
from torchcaps.experiments.verdicts import WORDS  # noqa: E402
from torchcaps.experiments.words import interval, measured, number, p_value  # noqa: E402

PRESETS = ("paper", "standard", "quick")
HEAD = """# Results

Every experiment is one command, given with its table. This page is made from the files in `results/` by
`python tools/results_page.py`.

## What was decided

Claims of the papers, and those that follow from them, which hold or are refuted; "ours" is the mean and the deviation
over seeds. Where a claim is a difference, a positive number is on its side.
"""
RULES = """
## How a verdict is made

A verdict is computed from the numbers. Two networks are compared seed by seed (paired
two-sided t-test, at least five seeds), or, where there is one of each, image by image (McNemar's test); a number is
held against the paper's by its 95 % interval over seeds. The p-values of an experiment are corrected for the number of
its claims (Holm): where there is nothing to find, at most one experiment in twenty decides anything.

- *holds*: decided, as the claim says; *refuted*: decided against it, at a budget that could have shown it
- *undecided*: the seeds do not separate it from chance; the reason says what would
- *not tested*: the budget was cut below what the claim needs; the reason says to what. A number that is reached
  nevertheless holds

`standard` takes hours of two cores: budgets in steps, five seeds, each network with its own learning rate from the
same small search. `quick` is cut to minutes, to try an experiment: most of its
claims are not tested. `paper` is the published protocol, where there is one. `torchcaps reproduce --stale` lists the
results that are older than their code.

## All experiments
"""
DECIDED = WORDS[:2]


def render(results: Path) -> str:
    found = [
        (results / name / preset, json.loads((results / name / preset / "summary.json").read_text()))
        for name in EXPERIMENTS
        for preset in PRESETS
        if (results / name / preset / "summary.json").exists()
    ]
    lines = [HEAD, "| claim | paper | ours | p | verdict | experiment |", "|---|---|---|---|---|---|"]
    lines += [row for word in DECIDED for _, summary in found for row in _decided(summary, word)]
    lines += [RULES, f"| experiment | preset | {' | '.join(WORDS)} |", "|---|---|---|---|---|---|"]
    lines += [_overview(summary) for _, summary in found]
    for folder, summary in found:
        lines += _section(folder, summary)
    return "\n".join(lines).rstrip() + "\n"


def judged_again(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The verdicts of a summary. Those of earlier versions had another rule, and no budget that could decide."""
    reason = f"{summary['preset']} budget: {summary['cut']}"
    return [
        verdict
        if "reason" in verdict
        else {**verdict, "reason": "" if verdict["verdict"] == "measured" else reason}
        | ({} if verdict["verdict"] == "measured" else {"verdict": "not tested"})
        for verdict in summary["verdicts"]
    ]


def _decided(summary: dict[str, Any], word: str) -> list[str]:
    """The claims of an experiment with this verdict."""
    return [
        f"| {v['claim']} | {number(v['paper'], v['unit'])} | {measured(v)} | {p_value(v)} | {word} | {_link(summary)} |"
        for v in judged_again(summary)
        if v["verdict"] == word
    ]


def _link(summary: dict[str, Any]) -> str:
    return f"[{summary['experiment']}](#{_anchor(summary)})"


def _overview(summary: dict[str, Any]) -> str:
    link = _link(summary)
    if summary["not_run"]:
        return f"| {link} | {summary['preset']} | not run | | | |"
    words = [verdict["verdict"] for verdict in judged_again(summary)]
    counts = [str(words.count(word) or "") for word in WORDS]
    return f"| {link} | {summary['preset']} | {' | '.join(counts)} |"


def _title(summary: dict[str, Any]) -> str:
    return f"{summary['experiment']} {summary['preset']}"


def _anchor(summary: dict[str, Any]) -> str:
    return _title(summary).lower().replace(" ", "-")


def _sentence(about: str) -> str:
    return about[0].upper() + about[1:] + ("" if about.endswith("?") else ".")


def _origin(folder: Path) -> str:
    """Threads, processor and commit of the work, all of them where its parts had different ones."""
    rows = json.loads((folder / "rows.json").read_text())["rows"].values()
    threads = sorted({row["machine"]["threads"] for row in rows})
    processors = {row["machine"]["processor"] for row in rows}
    commits = {row["commit"] or "no commit" for row in rows}
    words = "1 thread" if threads == [1] else f"{' or '.join(map(str, threads))} threads"
    return ", ".join([words, *sorted(processors), *sorted(commits)])


def _once(reason: str, summary: dict[str, Any]) -> str:
    """What the line above the table says already is not said again with every claim."""
    return "" if summary["cut"] and reason.endswith(summary["cut"]) else reason


def _section(folder: Path, summary: dict[str, Any]) -> list[str]:
    lines = ["", f"## {_title(summary)}", "", f"{_sentence(summary['about'])} {summary['paper']}.", ""]
    lines += [f"    {summary['command']}", ""]
    if summary["not_run"]:
        return [*lines, f"Not run: {summary['not_run']}."]
    cut = f"Cut down: {summary['cut']}. " if summary["cut"] else ""
    took = f"{summary['seconds']:,.0f} s of work, {_origin(folder)}"
    lines += [f"{cut}{took}; [rows](../results/{folder.parent.name}/{folder.name}/rows.json).", ""]
    lines += ["| claim | paper | ours | 95 % interval | seeds | p | verdict | |", "|---|---|---|---|---|---|---|---|"]
    for verdict in judged_again(summary):
        cells = (
            verdict["claim"],
            number(verdict["paper"], verdict["unit"]),
            measured(verdict),
            interval(verdict),
            str(verdict["seeds"]),
            p_value(verdict),
            verdict["verdict"],
            "; ".join(filter(None, (verdict["note"], _once(verdict["reason"], summary)))),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for figure in summary["figures"]:
        lines += ["", f"![{figure.removesuffix('.png')}](../results/{folder.parent.name}/{folder.name}/{figure})"]
    return lines


def main() -> None:
    page, fresh = ROOT / "docs" / "RESULTS.md", render(ROOT / "results")
    if "--check" in sys.argv:
        current = page.read_text() if page.exists() else ""
        sys.exit(0 if fresh == current else "docs/RESULTS.md is not what results/ says: run tools/results_page.py")
    page.write_text(fresh)


if __name__ == "__main__":
    main()
