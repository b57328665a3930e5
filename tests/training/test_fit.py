"""`fit`: networks, losses and data of one's own through the same loop, run folder and report as those by name."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from own_network import STEPS, Net, bars
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import torchcaps
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json
from torchcaps.core.types import ModelOutput
from torchcaps.data import DATA, resolve
from torchcaps.data.sets import Batch
from torchcaps.models.config import model_config
from torchcaps.training.runs import read_answers, run_data
from torchcaps.viz.report import write_report

ROOT = Path(__file__).parents[2]


class Lengths(Net):
    """Returns a ModelOutput, and has no loss."""

    def forward(self, images: Tensor) -> ModelOutput:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ModelOutput(super().forward(images).sigmoid())


OPTIONS: dict[str, Any] = {"epochs": 8, "batch": 16, "lr": 3e-3, "quiet": True}


def test_own_network_on_own_tensors_is_trained_scored_and_reported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, data, test = Net(), bars(), bars(60)
    result = torchcaps.fit(net, data, test=test, out=tmp_path, **OPTIONS)
    assert result["accuracy"] > 0.9
    assert (result["images"], result["data"], result["model"]) == (60, "tensors", "Net")
    with torch.no_grad():
        right = (net.eval()(test[0].float() / 255).argmax(1) == test[1]).float().mean()
    assert float(right) == pytest.approx(result["accuracy"]), "the network handed over has the weights of the run"
    config, manifest = read_json(tmp_path / "config.json"), read_json(tmp_path / "manifest.json")
    assert config["model"] == {"kind": "module", "class": "own_network:Net"}
    assert set(manifest["data"]) == {"tensors/train", "tensors/test"}
    assert all(len(digest) == 64 for digest in manifest["data"].values())
    lengths, labels = read_answers(tmp_path) or (torch.zeros(0), torch.zeros(0))
    assert torch.equal(labels[:, 0], test[1])
    assert float((lengths.argmax(1) == test[1]).float().mean()) == pytest.approx(result["accuracy"])

    with pytest.raises(UserError, match=r"Net: hand one over, load_run\(run, model=...\)"):
        torchcaps.load_run(tmp_path)
    other, _ = torchcaps.load_run(tmp_path, model=Net())
    assert torch.equal(other.layers[0].weight, net.layers[0].weight)
    with pytest.raises(UserError, match="hand them over again"):
        write_report(tmp_path, model=Net())
    report = write_report(tmp_path, model=Net(), data=data, test=test)
    assert "Confusion matrix" in report.read_text()


def test_finished_it_is_only_read_and_other_data_is_refused(tmp_path: Path) -> None:
    first = torchcaps.fit(Net(), bars(), out=tmp_path, steps=5, quiet=True)
    assert first["steps"] == 5
    again = Net()
    assert torchcaps.fit(again, bars(), out=tmp_path, steps=5, quiet=True) == first
    assert torch.equal(again.layers[0].weight, torchcaps.load_run(tmp_path, model=Net())[0].layers[0].weight)
    with pytest.raises(UserError, match="holds a run with data tensors:"):
        torchcaps.fit(Net(), bars(244), out=tmp_path, steps=5, quiet=True)
    with pytest.raises(UserError, match="steps 5, not 6"):
        torchcaps.fit(Net(), bars(), out=tmp_path, steps=6, quiet=True)
    with pytest.raises(UserError, match="already holds a run"):
        torchcaps.fit(Net(), bars(), out=tmp_path, steps=5, quiet=True, resume=False)


def test_killed_and_called_again_it_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """Also where the call that goes on brings other first weights: those of the first call are kept."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(Path(__file__).with_name("own_network.py")), str(killed)]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, env=environment)
    torch.manual_seed(1)
    torchcaps.fit(Net(), bars(), out=whole, **STEPS)
    pointer = killed / "checkpoint" / "latest.json"
    while process.poll() is None and not (pointer.exists() and json.loads(pointer.read_text())["step"] > 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert pointer.exists(), errors.decode()
    assert not (killed / "result.json").exists()
    torch.manual_seed(2)
    torchcaps.fit(Net(), bars(), out=killed, **STEPS)
    for name in ("model.safetensors", "metrics.csv", "answers.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name


def test_a_dataset_is_the_same_as_its_tensors(tmp_path: Path) -> None:
    images, labels = bars(kind=torch.float32)
    results = []
    for name, data in (("pair", (images, labels)), ("dataset", TensorDataset(images, labels))):
        torch.manual_seed(0)
        results.append(torchcaps.fit(Net(), data, out=tmp_path / name, steps=8, quiet=True))
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["images"] == 36, "of 240 images, the share that is kept for testing"


def test_a_loss_of_ones_own_and_the_margin_loss_for_lengths(tmp_path: Path) -> None:
    def doubled(output: Tensor, batch: Batch) -> dict[str, Tensor]:
        part = nn.functional.cross_entropy(output, batch.labels[:, 0])
        return {"total": 2 * part, "part": part}

    torchcaps.fit(Net(), bars(), loss=doubled, out=tmp_path / "own", steps=4, quiet=True)
    assert "part" in (tmp_path / "own" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert read_json(tmp_path / "own" / "config.json")["train"]["loss"].endswith("doubled")
    torch.manual_seed(0)
    assert torchcaps.fit(Lengths(), bars(), test=bars(60), out=tmp_path / "l", **OPTIONS)["accuracy"] > 0.9
    with pytest.raises(UserError, match=r"one number.*not \[16\]"):
        torchcaps.fit(Net(), bars(), loss=lambda output, _: output[:, 0], out=tmp_path / "x", batch=16, steps=4)


def test_several_labels_in_an_image(tmp_path: Path) -> None:
    images, labels = bars()
    mixed = torch.maximum(images, images.roll(1, 0)), torch.stack([labels, labels.roll(1)], 1)
    torch.manual_seed(0)
    result = torchcaps.fit(Net(), mixed, out=tmp_path / "scores", **OPTIONS)
    assert result["metric"] == "all labels right"
    assert result["at_least_one"] >= result["accuracy"] > 0.5
    small = {"channels": 16, "design": "photo"}
    named = torchcaps.fit("cnn", mixed, out=tmp_path / "cnn", overrides=small, steps=2, quiet=True)
    assert read_json(tmp_path / "cnn" / "config.json")["model"]["objects"] == 2
    assert named["images"] == 36


def test_a_model_by_name_is_sized_to_tensors_and_read_back(tmp_path: Path) -> None:
    options = {"overrides": {"channels": 16}, "classes": ("up", "left", "down", "right")}
    result = torchcaps.fit("cnn", bars(), test=bars(60), out=tmp_path, steps=3, quiet=True, **options)
    model, config = torchcaps.load_run(tmp_path)
    assert (model.config.image, model.config.classes, config["classes"]) == ((1, 12, 12), 4, list(options["classes"]))
    assert result["images"] == 60


def wrong(**change: Any) -> tuple[Any, Any]:
    images, labels = bars(kind=torch.float32)
    return change.get("images", images), change.get("labels", labels)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (wrong(labels=torch.arange(240) % 4 - 1), "labels go from -1 to 2, should be 0 or more"),
        (wrong(labels=torch.arange(240) % 7), "Net tells 4 classes apart, tensors has 7"),
        (wrong(labels=torch.arange(200) % 4), r"as there are 240 images, not torch.int64 \[200\]"),
        (wrong(labels=torch.rand(240)), r"labels must be whole numbers.*torch.float32 \[240\]"),
        (wrong(images=torch.rand(240, 12)), r"\[n, c, h, w\] or \[n, h, w\], not \[240, 12\]"),
        (wrong(images=torch.zeros(240, 12, 12, dtype=torch.int64)), "uint8, 0 to 255, or floats.*not torch.int64"),
        (wrong(images=torch.zeros(0, 1, 12, 12), labels=torch.zeros(0).long()), r"no images in \[0, 1, 12, 12\]"),
        (wrong(images=torch.full((240, 1, 12, 12), torch.nan)), "240 of 240 images have values that are not numbers"),
        (wrong(images=torch.rand(240, 3, 12, 12)), r"Net cannot take images of \(3, 12, 12\)"),
        ([1, 2, 3], "a pair"),
        (7, "data is a name"),
    ],
)
def test_wrong_tensors_are_refused_in_a_sentence(data: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words) as error:
        torchcaps.fit(Net(), data, out=tmp_path / "run", steps=1)
    assert isinstance(error.value, UserError)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_other_mistakes_are_refused_in_a_sentence(tmp_path: Path) -> None:
    def refused(words: str, model: Any = None, data: Any = None, **options: Any) -> None:
        with pytest.raises(UserError, match=words):
            torchcaps.fit(model or Net(), data or bars(), out=tmp_path / "run", **{"steps": 1, **options})

    refused("labels go from 0 to 3, should be from 0 to 1 for 2 classes", classes=("a", "b"))
    refused("a batch of 512 is more than the 184 images", batch=512)
    refused(r"how long\? Give epochs=N, steps=N or max_seconds=S", steps=None)
    refused("^lr must be more than 0, not -1", lr=-1)
    refused("^steps must be more than 0, not 0", steps=0)
    refused("fit has no option learning_rate", learning_rate=1)
    refused("no parameters to train", model=nn.Flatten())
    refused(r"scores of \[batch, classes\], not \[2, 1, 12, 12\]", model=nn.Sequential(nn.Conv2d(1, 1, 1)))
    refused("should be .* with 1", test=(torch.rand(4, 9, 9), torch.zeros(4).long()))
    refused("mnist-mini has images of", test="mnist-mini")
    assert not (tmp_path / "run").exists()


def test_registered_data_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.data.named.DATA", dict(DATA))
    read = []

    def load() -> tuple[Tensor, Tensor]:
        read.append(1)
        return bars()

    names = ("up", "left", "down", "right")
    torchcaps.register_data("bars", bars, bars(60), classes=names, image=(1, 12, 12), about="rows and columns")
    torchcaps.register_data("lazy-bars", load, classes=names, image=(1, 12, 12))
    assert resolve("lazy-bars").classes == names
    assert not read, "read when it is needed"
    result = torchcaps.fit("cnn", "bars", out=tmp_path / "run", overrides={"channels": 16}, steps=3, quiet=True)
    assert (result["data"], result["images"]) == ("bars", 60)
    assert read_json(tmp_path / "run" / "config.json")["train"]["data"] == "bars"
    assert len(resolve("lazy-bars").test()) == 36
    for name, words in (("mnist", "already"), ("a/b", "no name")):
        with pytest.raises(UserError, match=words):
            torchcaps.register_data(name, bars())
    with pytest.raises(UserError, match="say its image"):
        torchcaps.register_data("more", load)
    monkeypatch.undo()
    _, config = torchcaps.load_run(tmp_path / "run")
    with pytest.raises(UserError, match=r'trained on .bars.: register_data\("bars", ...\) first'):
        run_data(tmp_path / "run", config)


def test_parts_of_ones_own_are_handed_over_on_loading(tmp_path: Path) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 8, 5, stride=2)

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(images).relu()

    options = {"overrides": {"backbone": Small()}, "steps": 2, "batch": 8, "quiet": True}
    torchcaps.fit("capsnet", bars(), out=tmp_path, **options)
    with pytest.raises(UserError, match="backbone"):
        torchcaps.load_run(tmp_path)
    model, _ = torchcaps.load_run(tmp_path, backbone=Small())
    assert model(torch.rand(2, 1, 12, 12)).lengths.shape == (2, 4)


def test_a_network_without_configuration_is_known_by_its_class() -> None:
    assert model_config(nn.Linear(2, 2)) == {"kind": "module", "class": "torch.nn.modules.linear:Linear"}
