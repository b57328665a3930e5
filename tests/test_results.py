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


def test_no_number_in_the_readme_is_older_than_its_code() -> None:
    named = re.findall(r"\(results/([\w-]+)(\.json|/standard)\)", (ROOT / "README.md").read_text())
    assert named
    for name, kind in named:
        if kind == ".json":
            rows = [json.loads((ROOT / "results" / f"{name}.json").read_text())]
        else:
            folder = ROOT / "results" / name / "standard"
            rows = [json.loads(path.read_text()) for path in (folder / "finished").glob("*.json")]
            if (folder / "rows.json").exists():
                rows += json.loads((folder / "rows.json").read_text())["rows"].values()
        trained = [row for row in rows if kind == ".json" or "trial" in row["configuration"]]
        assert trained, name
        assert all(map(is_fresh, trained)), name


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
