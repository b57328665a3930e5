"""Prediction of files, folders and streams, as a person or a script meets it."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.analysis.answers import answer
from torchcaps.app.cli import main
from torchcaps.app.predict import BATCH, as_they_come, batches_of, predict
from torchcaps.data.folder.decode import decoded
from torchcaps.models.registry import create_model
from torchcaps.training.runs import load_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs that are dark or light, a broken file among them, and a run that has learned a little of them."""
    root = tmp_path_factory.mktemp("own")
    random = np.random.RandomState(0)
    for name, low in (("dark", 0), ("light", 160)):
        (root / "images" / name).mkdir(parents=True)
        for n in range(12):
            noise = random.randint(low, low + 90, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(noise).save(root / "images" / name / f"{n}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHCAPS_DATA", str(root / "cache"))
        options = ["--epochs", "20", "--augment", "none", "--batch", "8", "--out", str(root / "run")]
        main(["train", "capsnet", "--data", str(root / "images"), *options])
    (root / "images" / "dark" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    return root


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    capsys.readouterr()
    main(["predict", *arguments])
    return capsys.readouterr()


def test_a_folder_as_a_table(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = output(capsys, str(place / "run"), str(place / "images"))
    lines = out.splitlines()
    assert lines[0].split() == ["label", "length", "image"]
    assert len(lines) == 25
    right = sum(line.split()[0] == Path(line.split()[-1]).parent.name for line in lines[1:])
    assert right >= 22
    assert err.splitlines() == [
        f"torchcaps: {place / 'images' / 'dark' / 'broken.jpg'} is not an image that can be read; PNG and JPEG can",
        "torchcaps: 1 of 25 files could not be read",
    ]


def test_json_and_csv_say_the_same(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(place / "images" / "light" / f"{n}.png") for n in range(3)]
    rows = json.loads(output(capsys, str(place / "run"), *files, "--json")[0])
    assert rows == json.loads(output(capsys, str(place / "run"), *files, "--format", "json")[0])
    table = list(csv.DictReader(io.StringIO(output(capsys, str(place / "run"), *files, "--format", "csv")[0])))
    assert [row["image"] for row in rows] == [row["image"] for row in table] == files
    for row, line in zip(rows, table, strict=True):
        assert set(row) == {"image", "label", "confidence", "lengths"}
        assert line["label"] == (row["label"] or "none of these")
        assert {name: float(line[name]) for name in ("dark", "light")} == row["lengths"]
        assert row["confidence"] == max(row["lengths"].values())


def test_only_unreadable_files_fail(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = str(place / "images" / "dark" / "broken.jpg")
    for options in ([], ["--json"], ["--format", "csv"]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(["predict", str(place / "run"), broken, broken, *options])
        assert stop.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 2


def test_an_empty_folder_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["predict", str(place / "run"), str(tmp_path)])
    assert stop.value.code == 2
    assert "no images" in capsys.readouterr().err


def test_a_stream_is_answered_as_it_comes(place: Path) -> None:
    """The first answer is there before the second question is asked."""
    command = [sys.executable, "-m", "torchcaps", "predict", str(place / "run"), "-"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHCAPS_DATA": str(place / "cache")}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for name in ("0.png", "1.png"):
            process.stdin.write(f"{place / 'images' / 'light' / name}\n")
            process.stdin.flush()
            while not (line := process.stdout.readline()).strip().endswith(name):
                assert line, process.stderr.read() if process.stderr else ""
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_names_of_files_are_any_bytes(place: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.png"
    shutil.copy(place / "images" / "dark" / "0.png", odd)
    command = [sys.executable, "-m", "torchcaps", "predict", str(place / "run"), "-"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    answer = subprocess.run(command, input=odd + b"\n", capture_output=True, env=environment, timeout=120)
    assert answer.returncode == 0, answer.stderr
    assert odd in answer.stdout


def test_a_stream_that_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> Iterator[str]:
        yield "a\n"
        raise ValueError("cut off")

    ended = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())
    assert [path for paths in as_they_come(lines(), BATCH) for path in paths] == ["a"]
    assert ended.wait(10)


def test_lines_are_batched_when_they_rush() -> None:
    batches = list(as_they_come(io.StringIO("".join(f"{n}\n" for n in range(200)) + "\n"), 64))
    assert [path for paths in batches for path in paths] == [str(n) for n in range(200)]
    assert max(map(len, batches)) <= 64
    assert list(as_they_come(io.StringIO(""), 8)) == []


def test_batches_answer_as_single_files_do(place: Path) -> None:
    model, _ = load_run(place / "run")
    files = [str(path) for path in sorted((place / "images" / "dark").glob("*.png"))]
    together = list(predict(model, ("dark", "light"), [files]))
    alone = list(predict(model, ("dark", "light"), [[file] for file in files]))
    for one, other in zip(together, alone, strict=True):
        assert isinstance(one, dict)
        assert isinstance(other, dict)
        assert one["image"] == other["image"]
        assert one["lengths"] == pytest.approx(other["lengths"], abs=1e-4)


def test_arguments_are_files_and_folders_in_their_order(place: Path) -> None:
    folder, file = str(place / "images" / "dark"), str(place / "images" / "light" / "0.png")
    batches = list(batches_of([file, folder] * 6))
    assert len(batches[0]) == BATCH
    paths = [path for batch in batches for path in batch]
    assert paths[0] == paths[14] == file
    assert [Path(path).name for path in paths[1:4]] == ["0.png", "1.png", "2.png"]


def test_none_of_these_where_no_capsule_is_long() -> None:
    classes = ("a", "b", "c")
    assert answer("x", torch.tensor([0.1, 0.49, 0.2]), classes, 1)["label"] is None
    assert answer("x", torch.tensor([0.1, 0.51, 0.2]), classes, 1)["label"] == "b"
    assert answer("x", torch.tensor([0.9, 0.3, 0.6]), classes, 2)["label"] == ["a", "c"]
    assert answer("x", torch.tensor([0.9, 0.3, 0.4]), classes, 2) == {
        "image": "x", "label": ["a"], "confidence": 0.4, "lengths": {"a": 0.9, "b": 0.3, "c": 0.4},
    }  # fmt: skip


def test_decoding_holds_few_pictures_at_a_time(place: Path) -> None:
    """However many paths there are: none is asked for before there is room."""
    asked = 0

    def paths():
        nonlocal asked
        for _ in range(100):
            asked += 1
            yield place / "images" / "light" / "0.png"

    pictures = decoded(paths(), (3, 8, 8), ahead=5)
    next(pictures)
    assert asked == 5
    assert sum(1 for _ in pictures) == 99


def test_models_that_size_themselves_fit_any_image() -> None:
    for name in ("capsnet", "cnn"):
        for image in ((3, 96, 80), (1, 20, 28), (1, 12, 12), (4, 130, 33)):
            model = create_model(name, image=image, classes=3).eval()
            assert model(torch.rand(2, *image)).lengths.shape == (2, 3)
    small = create_model("capsnet", image=(1, 20, 28), classes=3)
    large = create_model("capsnet", image=(3, 64, 64), classes=3)
    assert (small.config.backbone, large.config.backbone) == ("compact", "photo")
