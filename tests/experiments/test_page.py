"""docs/RESULTS.md is what results/ says, to the byte."""

import json
import subprocess
import sys
from pathlib import Path

from results_page import render

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_results() -> None:
    answer = subprocess.run([sys.executable, ROOT / "tools/results_page.py", "--check"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_the_page_shows_paper_ours_and_verdict(tmp_path: Path) -> None:
    verdict = {"claim": "MNIST error", "paper": 0.0025, "ours": 0.0041, "spread": 0.0003, "seeds": 3, "unit": "%"}
    summary = {
        "command": "torchcaps reproduce table1 --preset quick", "experiment": "table1", "preset": "quick",
        "about": "errors on MNIST", "paper": "Table 1", "cut": "less", "not_run": None, "seconds": 12.0,
        "commit": "abc", "machine": {"threads": 2, "processor": "CPU"}, "figures": ["table1.png"],
        "verdicts": [{**verdict, "verdict": "does not hold", "note": "small"}],
    }  # fmt: skip
    machine = {"threads": 1, "processor": "CPU"}
    rows = {"a": {"machine": machine, "commit": "b2"}, "b": {"machine": machine, "commit": "a1"}}
    asked = {**summary, "experiment": "svhn", "not_run": "no SVHN", "about": "is it read?"}
    decided = {**verdict, "verdict": "refuted", "reason": "", "note": "", "interval": [0.0036, 0.0046], "p": 0.0123}
    longer = {**summary, "preset": "standard", "verdicts": [decided, {**decided, "verdict": "not tested",
              "reason": "9,000 of 300,000 steps"}]}  # fmt: skip
    for name, content in (("table1", summary), ("svhn", asked), ("table1", longer)):
        folder = tmp_path / name / content["preset"]
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(content))
        (folder / "rows.json").write_text(json.dumps({"rows": rows}))
    page = render(tmp_path)
    assert page == render(tmp_path)
    assert "| MNIST error | 0.25 % | 0.41 ± 0.03 % |  | 3 |  | not tested | small |" in page, (
        "judged by the rule of today"
    )
    assert "| MNIST error | 0.25 % | 0.41 ± 0.03 % | 0.36 to 0.46 % | 3 | 0.012 | refuted |  |" in page
    assert "| not tested | 9,000 of 300,000 steps |" in page
    assert "| [table1](#table1-standard) | standard |  | 1 |  | 1 |" in page
    assert "Not run: no SVHN." in page
    assert "Errors on MNIST. Table 1." in page
    assert "Is it read? Table 1." in page
    assert "12 s of work, 1 thread, CPU, a1, b2;" in page, "as the rows say, not the process that put them together"
    assert "](../results/table1/quick/table1.png)" in page
    assert page.index("## table1") < page.index("## svhn")
