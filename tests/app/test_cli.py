"""The command line, as a person or a script meets it."""

import json
import os
import resource
import shutil
import subprocess
import sys
from itertools import repeat
from pathlib import Path

import pytest
from PIL import Image

from torchcaps import data as named
from torchcaps.app.cli import main
from torchcaps.data.corruptions import CORRUPTIONS
from torchcaps.models.registry import create_model
from torchcaps.viz.report import write_report
from torchcaps.viz.report.sections import read_run, sections


def run(*arguments: str) -> None:
    main(list(arguments))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a bad call prints; it must exit with 2 and print nothing else."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
    return err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    run("train", "capsnet-mnist-small", "--data", "mnist-mini", "--epochs", "1", "--batch", "64", "--out", str(out))
    return out


QUICK = ("--help", "--version", "train --help", "models", "models --json", "routings", "data list", "reproduce --list")


@pytest.mark.alone
@pytest.mark.parametrize("call", QUICK)
def test_commands_that_only_list_answer_at_once(call: str) -> None:
    """Without torch, whose import alone takes seconds. Only the time of the processor counts: others may use it too."""
    code = (
        f"import sys\nfrom torchcaps.app.cli import main\ntry:\n    main({call.split()})\n"
        "finally:\n    print('torch' in sys.modules, file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert answer.stderr == "False\n"
    assert answer.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


@pytest.mark.alone
def test_import_costs_little_beyond_torch() -> None:
    code = (
        "import time, torch, numpy\nbegan = time.process_time()\n"
        "import torchcaps\ntorchcaps.create_model\nprint(time.process_time() - began)"
    )
    assert any(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) < 0.5
        for _ in range(3)
    )


def test_models_json_has_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    run("models", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert all(set(row) == {"name", "parameters", "pretrained", "accuracy"} for row in rows)
    assert {row["name"]: row["parameters"] for row in rows}["capsnet-mnist"] == 8_215_568
    assert {row["name"]: row["accuracy"] for row in rows}["capsnet-mnist-small"] == 0.9963


def test_data_list(capsys: pytest.CaptureFixture[str]) -> None:
    run("data", "list", "--json")
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"mnist", "fashion-mnist", "multimnist", "multimnist-iou80", "cifar10", "mnist-mini"} <= names


def test_train_writes_a_whole_run(trained: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "manifest.json", "metrics.csv", "model.safetensors", "result.json", "checkpoint"} <= names
    manifest = json.loads((trained / "manifest.json").read_text())
    assert {"command", "seed", "commit", "versions", "machine", "data"} <= set(manifest)


def test_evaluate_agrees_with_the_result(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("evaluate", str(trained), "--json")
    scores = json.loads(capsys.readouterr().out)
    assert {"accuracy", "metric", "images", "data", "model", "parameters", "per_class", "ece"} <= set(scores)
    assert scores["accuracy"] == json.loads((trained / "result.json").read_text())["accuracy"] > 0.9
    assert scores["images"] == 1000


def test_spoilt_images_are_scored_beside_another_network(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    run("evaluate", str(copy), "--corruptions", "--beside", "capsnet-mnist-small", "--json")
    scores = json.loads(capsys.readouterr().out)
    assert scores["robustness"]["clean"] == scores["accuracy"]
    assert scores["beside"]["model"] == "capsnet-mnist-small"
    assert list(scores["robustness"]["corruptions"]) == list(scores["beside"]["corruptions"]) == list(CORRUPTIONS)
    kept = json.loads((copy / "corruptions.json").read_text())
    assert (kept["robustness"], kept["beside"]) == (scores["robustness"], scores["beside"])
    text = write_report(copy).read_text()
    assert "Accuracy on spoilt images" in text
    assert f"{scores['beside']['corruptions']['noise']['accuracy']:.2%}" in text
    assert (copy / "figures/spoilt.png").exists()
    kept["weights_sha256"] = "of an earlier training"
    (copy / "corruptions.json").write_text(json.dumps(kept))
    assert "Accuracy on spoilt images" not in [part.title for part in sections(read_run(copy))]
    wrong = refused(capsys, "evaluate", str(copy), "--corruptions", "--beside", "capsnet-multimnist-small")
    assert "takes images of (1, 36, 36), not of (1, 28, 28)" in wrong
    assert "--corruptions" in refused(capsys, "evaluate", str(copy), "--beside", "capsnet-mnist-small")


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "CMYK", "I;16", "LA"])
def test_predict_reads_every_mode(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    test = named.images("mnist-mini", "test")
    digit = Image.fromarray(test.images[0, 0].numpy())
    picture = digit.convert("I").point(lambda x: x * 256).convert("I;16") if mode == "I;16" else digit.convert(mode)
    path = tmp_path / ("digit.jpg" if mode == "CMYK" else "digit.png")
    picture.save(path)
    run("predict", str(trained), str(path), "--json")
    (row,) = json.loads(capsys.readouterr().out)
    assert set(row) == {"image", "label", "confidence", "lengths"}
    assert row["label"] == str(test.labels[0].item())


def test_predict_notices_a_large_inverted_scan(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = named.images("mnist-mini", "test")
    right = 0
    for index in range(20):
        paper = Image.new("L", (700, 500), 255)
        digit = Image.fromarray(255 - test.images[index, 0].numpy()).resize((300, 300), Image.Resampling.BICUBIC)
        paper.paste(digit, (330, 90))
        path = tmp_path / f"scan{index}.jpg"
        paper.save(path)
        run("predict", str(trained), str(path), "--json")
        (row,) = json.loads(capsys.readouterr().out)
        right += row["label"] == str(test.labels[index].item())
    assert right >= 18


def test_bad_calls_are_refused_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "capsnet-mnist" in refused(capsys, "train", "no-such-model", "--epochs", "1")
    assert "mnist" in refused(capsys, "train", "capsnet-mnist", "--data", "no-such-data", "--epochs", "1")
    assert "--epochs" in refused(capsys, "train", "capsnet-mnist")
    assert "more than 0" in refused(capsys, "train", "capsnet-mnist", "--epochs", "-1")
    for name, value in (("epochs", "nan"), ("epochs", "inf"), ("max-seconds", "nan"), ("lr", "nan")):
        assert "more than 0" in refused(capsys, "train", "capsnet-mnist", "--epochs", "1", f"--{name}", value)
    for name in ("seed", "validation"):
        assert "0 or more" in refused(capsys, "train", "capsnet-mnist", "--epochs", "1", f"--{name}", "-1")
    assert "--pairs" in refused(capsys, "evaluate", "capsnet-multimnist-small", "--pairs", "0")
    for name in ("warmup", "average"):
        for value in ("1", "-0.1", "nan"):
            assert "less than 1" in refused(capsys, "train", "capsnet-mnist", "--epochs", "1", f"--{name}", value)
    assert "invalid int value" in refused(capsys, "train", "capsnet-mnist", "--steps", "1.5")
    assert "more than 0" in refused(capsys, "demo", "--max-seconds", "0")
    assert "more than 0" in refused(capsys, "bench", "--repeats", "0")
    assert "65535" in refused(capsys, "serve", "--port", "70000")
    assert "--list" in refused(capsys, "reproduce")
    assert "table1" in refused(capsys, "reproduce", "no-such-experiment")
    assert "more than 0" in refused(capsys, "reproduce", "fig4", "--trials", "0")
    assert r"\x1b[2J" in refused(capsys, "models", "\x1b[2J\n")
    assert "--no-such-option" in refused(capsys, "train", "capsnet-mnist", "--no-such-option")
    assert "no-such-command" in refused(capsys, "no-such-command")
    assert "run folder" in refused(capsys, "evaluate", str(tmp_path / "missing"))
    assert "config.json" in refused(capsys, "evaluate", str(tmp_path))
    assert "config.json" in refused(capsys, "train", "--resume", "--out", str(tmp_path))
    assert "self-attention" in refused(capsys, "train", "capsnet-mnist", "--routing", "magic", "--epochs", "1")
    assert "iterations" in refused(
        capsys, "train", "capsnet-mnist", "--routing", "uniform", "--iterations", "2", "--epochs", "1"
    )
    assert "no option routing" in refused(capsys, "train", "cnn-mnist", "--routing", "uniform", "--epochs", "1")
    assert "device" in refused(
        capsys, "train", "capsnet-mnist-small", "--data", "mnist-mini", "--epochs", "1", "--device", "nonsense",
        "--out", str(tmp_path / "x"),
    )  # fmt: skip
    assert not (tmp_path / "x").exists()


def test_bad_images_are_refused_in_one_line(trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty, tiny, cut, text = (tmp_path / name for name in ("empty.png", "tiny.png", "cut.png", "text.png"))
    empty.touch()
    Image.new("L", (1, 1)).save(tiny)
    whole = tmp_path / "whole.png"
    Image.effect_noise((64, 64), 50).save(whole)
    cut.write_bytes(whole.read_bytes()[:1000])
    text.write_text("this is not an image")
    for path, word in [(empty, "image"), (tiny, "1x1"), (cut, "image"), (text, "image"), (tmp_path / "no", "exist")]:
        assert word in refused(capsys, "predict", str(trained), str(path))


def test_a_saved_model_is_not_taken_for_an_unfinished_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    create_model("cnn-mnist-small", channels=16).save_pretrained(tmp_path / "saved")
    assert "from_pretrained" in refused(capsys, "predict", str(tmp_path / "saved"), "x.png")


def test_a_run_with_another_routing_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    call = ("train", "capsnet-mnist-small", "--data", "mnist-mini", "--epochs", "0.1", "--routing", "heinsen")
    run(*call, "--iterations", "2", "--out", str(out), "--json")
    result = json.loads(capsys.readouterr().out)
    assert json.loads((out / "config.json").read_text())["model"]["routing_options"] == {"iterations": 2}
    run("evaluate", str(out), "--json")
    assert json.loads(capsys.readouterr().out)["accuracy"] == result["accuracy"]
    run("train", "--resume", "--out", str(out), "--json")
    assert json.loads(capsys.readouterr().out)["weights_sha256"] == result["weights_sha256"]


def test_quiet_says_nothing_and_evaluate_reads_the_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "run")
    call = ("train", "cnn-mnist-small", "--data", "mnist-mini", "--steps", "3", "--warmup", "0.5", "--quiet", "--json")
    run(*call, "--out", out)
    printed, said = capsys.readouterr()
    assert not said
    result = json.loads(printed)
    assert result["steps"] == 3
    monkeypatch.setattr("torchcaps.app.asking.score", None)  # answering again would fail
    run("evaluate", out, "--json")
    scores = json.loads(capsys.readouterr().out)
    assert (scores["accuracy"], scores["images"]) == (result["accuracy"], 1000)
    assert len(scores["per_class"]) == 10


def test_a_run_is_not_written_over(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    line = refused(
        capsys, "train", "capsnet-mnist-small", "--data", "mnist-mini", "--epochs", "1", "--out", str(trained)
    )
    assert "--resume" in line
    assert before == {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}


def test_flipped_bytes_are_noticed(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model.safetensors", "config.json"):
        copy = tmp_path / name.split(".")[0]
        subprocess.run(["cp", "-r", str(trained), str(copy)], check=True)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 0xFF
        (copy / name).write_bytes(content)
        refused(capsys, "evaluate", str(copy))


def test_unwritable_and_full_places_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    train = ("train", "capsnet-mnist-small", "--data", "mnist-mini", "--epochs", "0.1", "--out")
    assert "cannot write" in refused(capsys, *train, str(blocker / "run"))
    if os.path.exists("/dev/full"):
        full = tmp_path / "full"
        full.mkdir()
        # Every file of this run is beside its final name first; that name leads to a device that is always full.
        monkeypatch.setattr("torchcaps.core.files._numbers", repeat(0))
        (full / f".config.json.{os.getpid()}-0").symlink_to("/dev/full")
        assert "No space" in refused(capsys, *train, str(full))
        assert not (full / "config.json").exists()
