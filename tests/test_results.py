"""What the README says is what results/ holds."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchcaps.app.cli import main
from torchcaps.experiments.fingerprint import of_training
from torchcaps.experiments.freshness import is_fresh, stale_results

ROOT = Path(__file__).parent.parent


def test_readme_tables_are_those_of_the_results() -> None:
    answer = subprocess.run([sys.executable, ROOT / "tools/tables.py", "--check"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_a_number_that_is_older_than_its_code_is_marked_in_the_readme() -> None:
    for line in (ROOT / "README.md").read_text().splitlines():
        if found := re.search(r"\(results/([\w-]+)\.json\)", line):
            result = json.loads((ROOT / "results" / f"{found[1]}.json").read_text())
            fresh = "model" in result and is_fresh(result)
            assert fresh or " † |" in line, f"stale, and not marked: {line}"


def test_results_are_stale_once_their_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = of_training("capsnet-mnist-small", "mnist")
    result = {"model": "capsnet-mnist-small", "data": "mnist", "commit": "abc", "code": code}
    trial = {"name": "a", "model": "cnn-mnist-small", "data": "mnist", "overrides": {"channels": 64}, "seed": 0}
    rows = {
        "trained": {
            "commit": "abc",
            "code": of_training("cnn-mnist-small", "mnist"),
            "configuration": {"trial": trial},
        },
        "measured": {"commit": "def", "code": "another", "configuration": {}},
    }
    folder = tmp_path / "results" / "table1" / "standard"
    folder.mkdir(parents=True)
    (folder / "rows.json").write_text(json.dumps({"rows": rows}))
    for name, content in {
        "new": result,
        "old": {**result, "code": "other"},
        "unknown": {**result, "code": None},
    }.items():
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(content))
    found = {one.result: (one.stale, one.parts) for one in stale_results(tmp_path / "results")}
    assert found == {"table1/standard": (1, 2), "old.json": (1, 1), "unknown.json": (1, 1)}
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "--stale", "--json"])
    assert [row["result"] for row in json.loads(capsys.readouterr().out)] == list(found)
    main(["reproduce", "--stale"])
    assert "1 of 2" in capsys.readouterr().out


def test_every_result_says_where_it_comes_from() -> None:
    files = sorted((ROOT / "results").rglob("*.json"))
    assert files
    for path in files:
        assert "command" in json.loads(path.read_text()), path
