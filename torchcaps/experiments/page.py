"""The page of results: every experiment in `results/`, its verdicts and figures. The same files give the same bytes."""

import json
from pathlib import Path
from typing import Any

from torchcaps.experiments import EXPERIMENTS
from torchcaps.experiments.words import measured, number

PRESETS = ("paper", "quick")
HEAD = """# Results

Every experiment is one command, given with its table. This page is made from the files in `results/` by
`python tools/results_page.py`. A verdict is computed from the numbers: a value *holds* if it reaches the paper's
or misses it by no more than the spread over seeds; a comparison is *undecided* where the difference does not exceed
the spread. `quick` is the same experiment cut to minutes on two cores, as the line above each table says; `paper` is
the published protocol.
"""


def render(results: Path) -> str:
    found = [
        (results / name / preset, json.loads((results / name / preset / "summary.json").read_text()))
        for name in EXPERIMENTS
        for preset in PRESETS
        if (results / name / preset / "summary.json").exists()
    ]
    lines = [HEAD, "| experiment | preset | holds | does not hold | undecided |", "|---|---|---|---|---|"]
    lines += [_overview(summary) for _, summary in found]
    for folder, summary in found:
        lines += _section(folder, summary)
    return "\n".join(lines).rstrip() + "\n"


def _overview(summary: dict[str, Any]) -> str:
    name = summary["experiment"]
    link = f"[{name}](#{_anchor(summary)})"
    if summary["not_run"]:
        return f"| {link} | {summary['preset']} | not run | | |"
    words = [verdict["verdict"] for verdict in summary["verdicts"]]
    counts = [str(words.count(word) or "") for word in ("holds", "does not hold", "undecided")]
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


def _section(folder: Path, summary: dict[str, Any]) -> list[str]:
    lines = ["", f"## {_title(summary)}", "", f"{_sentence(summary['about'])} {summary['paper']}.", ""]
    lines += [f"    {summary['command']}", ""]
    if summary["not_run"]:
        return [*lines, f"Not run: {summary['not_run']}."]
    cut = f"Cut down: {summary['cut']}. " if summary["cut"] else ""
    took = f"{summary['seconds']:,.0f} s of work, {_origin(folder)}"
    lines += [f"{cut}{took}; [rows](../results/{folder.parent.name}/{folder.name}/rows.json).", ""]
    lines += ["| claim | paper | ours | seeds | verdict | |", "|---|---|---|---|---|---|"]
    for verdict in summary["verdicts"]:
        cells = (
            verdict["claim"],
            number(verdict["paper"], verdict["unit"]),
            measured(verdict),
            str(verdict["seeds"]),
            verdict["verdict"],
            verdict["note"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    for figure in summary["figures"]:
        lines += ["", f"![{figure.removesuffix('.png')}](../results/{folder.parent.name}/{folder.name}/{figure})"]
    return lines
