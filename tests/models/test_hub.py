"""Saving and loading by folder, with the hub's names."""

import json
import sys
from pathlib import Path

import pytest
import torch

from torchcaps.core.errors import UserError
from torchcaps.models.baseline import CNN
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.config import model_config
from torchcaps.models.registry import create_model

TINY = {"image": (3, 20, 24), "classes": 3, "backbone": "compact", "channels": 16, "primary_types": 2, "decoder": (16,)}


@pytest.fixture
def model() -> CapsNet:
    return create_model("capsnet", **TINY).eval()


def test_what_was_saved_comes_back(model: CapsNet, tmp_path: Path) -> None:
    assert model.save_pretrained(tmp_path / "toys") is None
    assert {path.name for path in (tmp_path / "toys").iterdir()} == {"config.json", "model.safetensors", "README.md"}
    again = CapsNet.from_pretrained(tmp_path / "toys")
    assert not again.training
    assert model_config(again) == model_config(model)
    images = torch.rand(2, 3, 20, 24)
    before, after = model(images), again(images)
    for name in ("lengths", "capsules", "reconstruction"):
        assert torch.equal(getattr(before, name), getattr(after, name))


def test_the_card_says_what_the_model_is(model: CapsNet, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, repo_id="me/toys", model_card_kwargs={"accuracy": 0.9, "labels": ("a", "b", "c")})
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: torchcaps\n")
    for text in (
        "# toys",
        "24x20 pixels, 3 channels, 3 classes",
        "| accuracy | 0.9 |",
        "a, b, c",
        'pretrained("me/toys")',
    ):
        assert text in card
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_the_wrong_type_and_damaged_folders_are_refused(model: CapsNet, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="holds a CapsNet, not a CNN"):
        CNN.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "classes": 4}))
    with pytest.raises(UserError, match=r"model\.safetensors"):
        CapsNet.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x08")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        CapsNet.from_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json"):
        CapsNet.from_pretrained(tmp_path)


def test_the_hub_is_an_extra(model: CapsNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"torchcaps\[hub\]"):
        model.push_to_hub("me/toys")
    with pytest.raises(UserError, match=r"not a folder.*torchcaps\[hub\]"):
        CapsNet.from_pretrained("me/toys")
