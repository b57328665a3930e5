"""Networks of timm under the capsules, by name. Where timm is not installed, a small module answers as it does."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps import create_model, fit
from torchcaps.core.errors import UserError
from torchcaps.models.capsnet import CapsNet
from torchcaps.training.runs import load_run
from torchcaps.training.train import go_on

SHAPE: dict[str, Any] = {"image": (3, 64, 64), "classes": 3, "primary_types": 2, "decoder": None}
NAME = "timm:test_resnet:random"


class _Pyramid(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Conv2d(8, 16, 3, 8, 1)

    def forward(self, images: Tensor) -> list[Tensor]:
        half = self.first(images)
        return [half, self.second(half)]


def _create_model(name: str, *, pretrained: bool, features_only: bool, in_chans: int) -> nn.Module:
    if name != "test_resnet":
        raise RuntimeError(f"Unknown model ({name})")
    if pretrained:
        raise OSError("no connection")
    assert features_only
    return _Pyramid(in_chans)


def _get_pretrained_cfg(name: str) -> SimpleNamespace:
    return SimpleNamespace(fixed_input_size=False, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


@pytest.fixture(autouse=True)
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import timm  # noqa: F401  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError):  # timm imports torchvision, of which there may be no build for this torch
        answers = ModuleType("timm")
        answers.__dict__.update(create_model=_create_model, get_pretrained_cfg=_get_pretrained_cfg)
        monkeypatch.setitem(sys.modules, "timm", answers)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("channels", [1, 3])
def test_the_name_and_the_weights_are_saved(channels: int, tmp_path: Path) -> None:
    model = create_model("capsnet", backbone=NAME, **{**SHAPE, "image": (channels, 64, 64)}).eval()
    images = torch.rand(2, channels, 64, 64)
    model.save_pretrained(tmp_path)
    again = CapsNet.from_pretrained(tmp_path)
    assert again.config == model.config
    assert torch.equal(again.eval()(images).lengths, model(images).lengths)


def test_loading_fetches_nothing(tmp_path: Path) -> None:
    create_model("capsnet", backbone=NAME, **SHAPE).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace(NAME, "timm:test_resnet"))
    assert CapsNet.from_pretrained(tmp_path).config.backbone == "timm:test_resnet"
    path.write_text(path.read_text().replace("timm:test_resnet", "timm:hf-hub:someone/network"))
    with pytest.raises(UserError, match="is timm:NAME, timm:NAME:frozen or timm:NAME:random"):
        CapsNet.from_pretrained(tmp_path)


def test_a_run_that_is_killed_at_once_keeps_the_weights_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned(name: str, *, pretrained: bool, in_chans: int, **_: Any) -> nn.Module:
        network = _Pyramid(in_chans)
        if pretrained:
            nn.init.constant_(network.second.weight, 0.125)
        return network

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("timm.create_model", learned)
    chosen: dict[str, Any] = {"backbone": "timm:test_resnet:frozen", "primary_types": 2, "decoder": None}
    with monkeypatch.context() as patch:
        patch.setattr("torchcaps.training.train.run_loop", killed)
        with pytest.raises(KeyboardInterrupt):
            fit("capsnet", "mnist-mini", out=tmp_path / "run", steps=1, overrides=chosen, quiet=True)
    go_on(tmp_path / "run", quiet=True)
    trained, _ = load_run(tmp_path / "run")
    assert torch.all(trained.backbone.network.network.second.weight == 0.125)


def test_channels_that_come_last_are_brought_to_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(_Pyramid):
        output_fmt = "NHWC"

        def forward(self, images: Tensor) -> list[Tensor]:
            return [part.permute(0, 2, 3, 1) for part in super().forward(images)]

    monkeypatch.setattr("timm.create_model", lambda *_, **__: Last(3))
    model = create_model("capsnet", backbone=NAME, **SHAPE)
    assert model.backbone.out_channels == 16
    assert model.grid == (2, 2, 2)


def test_a_frozen_one_stays_and_another_is_trained(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(24, 3, 64, 64, generator=generator), torch.arange(24) % 3
    for name, stays in ((NAME, False), (f"{NAME}:frozen", True)):
        run = tmp_path / str(stays)
        chosen: dict[str, Any] = {"backbone": name, "primary_types": 2, "decoder": None}
        fit("capsnet", (images, labels), test=(images, labels), out=run, steps=2, overrides=chosen, quiet=True)
        torch.manual_seed(0)
        begun, (trained, _) = create_model("capsnet", **{**SHAPE, "backbone": name}), load_run(run)
        pairs = zip(begun.backbone.state_dict().values(), trained.backbone.state_dict().values(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs) is stays


def test_pixels_are_normalised_as_in_its_own_training() -> None:
    backbone = create_model("capsnet", backbone=NAME, **SHAPE).backbone.network
    seen: list[Tensor] = []
    backbone.network.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    backbone(torch.full((1, 3, 64, 64), 0.5))
    assert seen[0].abs().max() == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("timm:nonsense", r"timm does not give nonsense: Unknown model \(nonsense\)"),
        ("timm:test_resnet", "timm does not give test_resnet: "),
        ("timm:hf-hub:someone/network", "is timm:NAME, timm:NAME:frozen or timm:NAME:random"),
        ("timm:../folder", "is timm:NAME, timm:NAME:frozen or timm:NAME:random"),
    ],
)
def test_what_cannot_be_had_is_one_line(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        create_model("capsnet", backbone=name, **SHAPE)


def test_without_timm_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'torchcaps\[timm\]'"):
        create_model("capsnet", backbone="timm:resnet18", **SHAPE)
