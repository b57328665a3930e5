"""Publishing without a browser: what is written, and what is refused before anything is."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchcaps.app import asking, publish
from torchcaps.app.cli import main
from torchcaps.app.graphs import FloatWindow, graphs
from torchcaps.app.publish import check_folder, find_runtime, policy, write_site
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.server import STATIC
from torchcaps.core.errors import UserError
from torchcaps.models.registry import create_model
from torchcaps.models.window import Window
from torchcaps.training.fit import fit


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Files of the right names, taken for the right ones; and graphs that cost nothing."""
    folder = tmp_path / "npm" / "package" / "dist"
    folder.mkdir(parents=True)
    for name in publish.RUNTIME_FILES:
        (folder / name).write_bytes(b"runtime")
    monkeypatch.setattr(publish, "find_runtime", lambda given: {name: folder / name for name in publish.RUNTIME_FILES})
    monkeypatch.setattr(publish, "graphs", lambda model: {"encoder": b"graph"})
    return tmp_path / "npm"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refused command prints."""
    with pytest.raises(SystemExit) as stopped:
        main(["publish", *arguments])
    output = capsys.readouterr()
    assert stopped.value.code == 2
    assert output.out == ""
    (line,) = output.err.strip().splitlines()
    return line


def test_a_site_has_the_page_its_models_and_nothing_inline(runtime, tmp_path, monkeypatch, capsys):
    run = tmp_path / "My digits"
    fit("capsnet-mnist-small", "mnist-mini", out=run, steps=1, batch=8, overrides={"channels": 8}, quiet=True)
    monkeypatch.chdir(tmp_path)
    main(["publish", str(run), "capsnet-mnist-small", "--json"])
    result = json.loads(capsys.readouterr().out)
    site = tmp_path / "site"
    assert json.loads((site / "site.json").read_text())["models"] == [
        {"id": "my-digits", "title": "mnist-mini · My digits"},
        {"id": "capsnet-mnist-small", "title": "mnist · capsnet-mnist-small"},
    ]
    about = json.loads((site / "models" / "my-digits" / "about.json").read_text())
    assert about["classes"] == list("0123456789")
    assert result["bytes"] == sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    assert result["webgpu_bytes"] == len(b"runtime") * len(publish.WEBGPU_FILES)
    assert result["first_visit_bytes"] == result["bytes"] - result["models"][1]["bytes"] - result["webgpu_bytes"]
    html = (site / "index.html").read_text()
    assert f'content="{policy()}"' in html
    assert 'data-engine="browser"' in html
    assert "unsafe-inline" not in html
    assert "<style" not in html
    assert 'src="/' not in html
    assert 'href="/' not in html
    assert not (site / "js" / "engines" / "server.js").exists()
    worker = (site / "sw.js").read_text()
    kept = json.loads(worker.partition("=")[2].partition(";\n")[0])["files"]
    assert {"./", "index.html", "js/main.js", "js/engines/worker.js"} <= set(kept)
    assert all((site / file).exists() for file in kept)
    assert all((site / "runtime" / file).exists() for file in publish.RUNTIME_FILES)
    assert not any(file.startswith("runtime/") for file in kept)
    with pytest.raises(UserError, match="is not empty"):
        check_folder(site)


def test_every_module_of_the_page_is_imported(runtime):
    """A file that no other one names would be published for nothing."""
    scripts = {path.name: path.read_text() for path in STATIC.rglob("*.js")}
    text = " ".join([*scripts.values(), (STATIC / "index.html").read_text(), Path(publish.__file__).read_text()])
    names = {"server.js": "server", "browser.js": "browser"}
    assert [name for name in scripts if names.get(name, name) not in text] == []


def test_the_version_follows_the_files(runtime, tmp_path):
    engine = Engine(create_model("capsnet-mnist-small"), "capsnet-mnist-small", "mnist-mini")
    files = publish.find_runtime(None)
    workers = []
    for name, samples in (("a", True), ("b", True), ("c", False)):
        write_site({"digits": engine}, tmp_path / name, files, samples=samples)
        workers.append((tmp_path / name / "sw.js").read_text())
    assert workers[0] == workers[1] != workers[2]
    assert json.loads((tmp_path / "c" / "models" / "digits" / "samples.json").read_text())["labels"] == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("mine")
    assert "is not empty" in refusal(capsys, "--out", str(tmp_path))
    assert "is a file" in refusal(capsys, "--out", str(tmp_path / "letter.txt"))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_without_the_runtime_it_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "site"
    with pytest.raises(UserError, match=r"npm is not installed.*npm pack onnxruntime-web@.*--runtime"):
        find_runtime(None)
    capsys.readouterr()
    assert "has no ort" in refusal(capsys, "--out", str(out), "--runtime", str(tmp_path))
    for name in publish.RUNTIME_FILES:
        (tmp_path / name).write_bytes(b"something else")
    assert "its SHA-256 is another" in refusal(capsys, "--out", str(out), "--runtime", str(tmp_path))
    assert not out.exists()


def test_a_model_that_is_not_there_leaves_nothing_behind(runtime, tmp_path, capsys):
    out = tmp_path / "site"
    assert "neither a run folder nor a model" in refusal(capsys, "none", "--out", str(out))
    assert "no weights for 'cnn-mnist'" in refusal(capsys, "cnn-mnist", "--out", str(out))
    assert not out.exists()


def test_all_models_of_the_package_unless_named(runtime, tmp_path, capsys, monkeypatch):
    main(["publish", "--out", str(tmp_path / "site"), "--no-samples", "--json"])
    found = [model["id"] for model in json.loads(capsys.readouterr().out)["models"]]
    assert found[0] == asking.FLAGSHIP
    assert sorted(found) == sorted(asking.PRETRAINED)


def test_graphs_of_a_cnn_are_its_answers_alone():
    torch.manual_seed(0)
    model = create_model("cnn", image=(1, 20, 20), classes=2)
    assert list(graphs(model)) == ["encoder"]


@pytest.mark.parametrize("ink", ["noise", "strokes", "nothing"])
def test_the_window_of_a_graph_is_that_of_the_model(ink):
    noise = torch.rand(200, 2, 30, 36, generator=torch.Generator().manual_seed(1))
    images = {"noise": noise, "strokes": noise.pow(30), "nothing": torch.zeros(1, 2, 30, 36)}[ink]
    usual, ours = Window((2, 30, 36), 20), FloatWindow((2, 30, 36), 20)
    assert torch.equal(torch.cat(ours.places(images), 1), usual.corner(images).float())
    assert torch.equal(ours(images), usual(images))


def test_a_graph_that_answers_something_else_is_not_written(monkeypatch):
    wrong = {"lengths": torch.full((1, 1), 0.3)}
    monkeypatch.setattr("torchcaps.app.graphs.onnx_runner", lambda content: lambda images: wrong)
    with pytest.raises(UserError, match="the exported lengths are off"):
        graphs(create_model("cnn", image=(1, 20, 20), classes=1))
