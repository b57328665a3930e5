"""What the README says is what results/ holds."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_readme_tables_are_those_of_the_results() -> None:
    answer = subprocess.run([sys.executable, ROOT / "tools/tables.py", "--check"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_every_result_says_where_it_comes_from() -> None:
    files = sorted((ROOT / "results").rglob("*.json"))
    assert files
    for path in files:
        assert "command" in json.loads(path.read_text()), path
