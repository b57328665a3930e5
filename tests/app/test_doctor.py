"""`torchcaps doctor`: every convolution of every model, quickly, in words that people and programs understand."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from torchcaps import register_model
from torchcaps.app.cli import main
from torchcaps.app.shapes import shapes
from torchcaps.core.types import CapsuleMap
from torchcaps.kernels import convolution, report
from torchcaps.models.registry import MODELS, create_model
from torchcaps.nn import ConvCaps, PrimaryCaps


def doctor(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main(["doctor", "--json"])
    return json.loads(capsys.readouterr().out)


def test_json_has_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor(capsys)
    assert set(found) == {
        "processor", "cores", "threads", "torch", "vectors", "kernels", "compiler", "cache", "seconds_per_billion",
        "seconds_per_call", "libraries", "layers", "convolutions", "other_choices",
    }  # fmt: skip
    assert len(found["convolutions"]) == len(shapes()) * len(report.BATCHES)
    assert {name for row in found["convolutions"] for name in row["models"]} <= set(MODELS)


def test_lines_are_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_KERNELS", "plain")
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert sum("256 x 20 x 20 by 256 x 9 x 9, stride 2" in line for line in lines) == 1
    assert "dynamic routing                  PyTorch: TORCHCAPS_KERNELS=plain" in lines
    (line,) = (line for line in lines if "capsnet-multimnist-small" in line and "160 x 6 x 6 by 32" in line)
    assert line.startswith("plain 1.00     " * len(report.BATCHES))


@pytest.mark.parametrize("name", ["capsnet-mnist-small", "cnn-multimnist-small", "matrix-mnist", "capsnet-mnist"])
def test_shapes_are_those_of_a_real_call(name: str) -> None:
    model = create_model(name).eval()
    with convolution.noted() as noted, torch.no_grad():
        model(torch.rand(1, *model.config.image))
    assert {shape for shape, models in shapes().items() if name in models} == set(noted)


@dataclass(frozen=True)
class OwnConfig:
    image: tuple[int, int, int] = (1, 12, 12)
    classes: int = 10
    objects: int = 1


class Own(nn.Module):
    """It needs numbers after its convolution."""

    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 5, 3, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = convolution.convolve(self.conv, images)
        return maps if maps.sum().item() else -maps


def test_models_of_ones_own_are_listed_as_far_as_they_run() -> None:
    register_model("own", OwnConfig(), Own)
    assert shapes()[1, 12, 12, 5, 3, 3, 2, 0] == ["own"]


@dataclass(frozen=True)
class OddConfig(OwnConfig):
    image: tuple[int, int, int] = (8, 11, 13)


class Odd(nn.Module):
    """Convolutional capsules on a map of a size that no other model has."""

    def __init__(self, config: OddConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(PrimaryCaps(8, 2, 4, 3, 1), ConvCaps(2, 4, 3, 4, 2, routing="em"))

    def forward(self, images: torch.Tensor) -> CapsuleMap:
        return self.layers(images)


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_models_work_after_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that models share, such as tables of windows, is left without numbers."""
    monkeypatch.setenv("TORCHCAPS_KERNELS", mode)
    register_model("odd", OddConfig(), Odd)
    assert (8, 11, 13, 8, 3, 3, 1, 0) in shapes()
    assert Odd(OddConfig())(torch.rand(2, 8, 11, 13)).poses.isfinite().all()


@pytest.mark.alone
def test_answer_takes_two_seconds_beyond_the_imports() -> None:
    code = (
        "import time, sys\nimport torchcaps.app.commands\nfrom torchcaps.app.cli import main\n"
        "began = time.process_time()\nmain(['doctor', '--json'])\nprint(time.process_time() - began, file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(answer.stderr) < 2
