"""What is printed cannot steer a terminal, and a failure among many is told."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from torchcaps.app.cli import main
from torchcaps.app.output import print_table, score_line
from torchcaps.app.predict import FORMATS
from torchcaps.core.errors import UserError
from torchcaps.core.progress import Progress
from torchcaps.core.text import printable
from torchcaps.experiments import EXPERIMENTS
from torchcaps.experiments import reproduce as runner

MODEL = "capsnet-mnist-small"


def test_printable_escapes_what_steers_and_nothing_else() -> None:
    assert printable("a\x1b[31m\r\n\x07\x9b\u202e\u2028") == r"a\x1b[31m\r\n\x07\x9b\u202e\u2028"
    for text in ("plain name.png", "café", "数字", "\udce9", "ÿ", "a\u200db"):
        assert printable(text) == text
    assert printable("\udc9b") == r"\x9b"


@pytest.mark.skipif(sys.platform == "win32", reason="such names cannot be given to files there")
def test_names_of_files_do_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = tmp_path / "a\x1b]0;owned\x07\nb.png"
    Image.new("L", (28, 28)).save(name)
    broken = tmp_path / "c\x1b[2J.png"
    broken.write_text("no image")
    main(["predict", MODEL, str(name), str(broken)])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert len(out.splitlines()) == 2
    assert r"a\x1b]0;owned\x07\nb.png" in out
    assert r"c\x1b[2J.png" in err
    main(["predict", MODEL, str(name), "--json"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert json.loads(out)[0]["image"] == str(name)
    main(["explain", MODEL, str(name), "--out", str(tmp_path / "p\x1b.html")])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"p\x1b.html" in out


def test_names_are_escaped_in_tables_scores_and_bars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a\x1b]0;owned\x07"
    print_table(("name",), [(name,)])
    print(score_line({"model": name, "data": name, "accuracy": 0.5, "images": 3}))
    row = {"image": "x.png", "label": name, "confidence": 0.5, "lengths": {}}
    print(*FORMATS["table"]([row], (name,)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Progress(name):
        pass
    out, err = capsys.readouterr()
    assert "\x1b]0" not in out + err
    assert out.count(printable(name)) == 4


def test_csv_is_exact_for_programs_and_escaped_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path / "a\x1b.png"
    Image.new("L", (28, 28)).save(name)
    main(["predict", MODEL, str(name), "--format", "csv"])
    assert str(name) in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main(["predict", MODEL, str(name), "--format", "csv"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"a\x1b.png" in out


def test_reproduce_all_runs_the_others_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []

    def one(name: str, *_: Any, **__: Any) -> dict[str, Any]:
        begun.append(name)
        if name == "fig3":
            raise UserError("svhn cannot be fetched")
        if name == "fig5":
            raise ZeroDivisionError("float division by zero")
        return {"experiment": name}

    monkeypatch.setattr(runner, "reproduce", one)
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "all", "--json"])
    out, err = capsys.readouterr()
    assert stop.value.code == 1
    assert begun == list(EXPERIMENTS)
    assert [row["experiment"] for row in json.loads(out)] == [n for n in EXPERIMENTS if n not in ("fig3", "fig5")]
    lines = err.splitlines()
    assert lines[0] == "torchcaps: fig3: svhn cannot be fetched"
    assert lines[1] == "torchcaps: fig5: ZeroDivisionError: float division by zero"
    assert lines[-1] == f"torchcaps: 2 of {len(EXPERIMENTS)} failed: fig3, fig5"


def test_reproduce_all_succeeds_when_all_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "reproduce", lambda name, *_, **__: {"experiment": name})
    main(["reproduce", "all", "--json"])
    assert len(json.loads(capsys.readouterr().out)) == len(EXPERIMENTS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchcaps rou", {"routings"}),
        (
            "torchcaps train matrix-",
            {"matrix-mnist", "matrix-smallnorb", "matrix-smallnorb-small", "matrix-smallnorb-stem"},
        ),
        ("torchcaps train capsnet --routing inv", {"inverted-dot-product"}),
        ("torchcaps reproduce smallnorb-", {"smallnorb-em"}),
        (
            "torchcaps predict capsnet-mu",
            {"capsnet-multimnist-small", "capsnet-multimnist-fine", "capsnet-multimnist-wide"},
        ),
    ],
)
def test_the_shell_completes_names(line: str, expected: set[str], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    environment = {**os.environ, **asked, "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n"}
    code = "import sys; from torchcaps.app.cli import main; main()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, cwd=tmp_path)
    assert {name.strip() for name in answer.read_text().split("\n") if name.strip()} == expected
