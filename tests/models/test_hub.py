"""Saving and loading by folder, with the hub's names."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from torchcaps.core.errors import UserError
from torchcaps.models.baseline import CNN
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.config import model_config, model_from_config
from torchcaps.models.hub import card_facts
from torchcaps.models.pretrained import PRETRAINED
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


@pytest.mark.parametrize(
    "damage",
    [
        {"objects": ""},
        {"objects": -1},
        {"objects": 99},
        {"image": [True, 28, 28]},
        {"image": [1, 28]},
        {"classes": 0},
        {"standardise": "no"},
        {"reconstruction_weight": "a"},
        {"recipe": "mine"},
    ],
)
def test_a_configuration_whose_values_cannot_be_is_refused_before_an_image_comes(
    model: CapsNet, damage: dict[str, object]
) -> None:
    (name,) = damage
    with pytest.raises(UserError, match=f"^the model's configuration is damaged: '{name}' is "):
        model_from_config({**model_config(model), **damage})


@pytest.mark.parametrize("recorded", ["config.json", "result.json"])
def test_weights_that_are_not_those_that_were_recorded_are_refused(
    model: CapsNet, tmp_path: Path, recorded: str
) -> None:
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    if recorded == "result.json":
        (tmp_path / "result.json").write_text(json.dumps({"weights_sha256": config.pop("weights_sha256")}))
        config = {"train": {}, "model": config}
        (tmp_path / "config.json").write_text(json.dumps(config))
    CapsNet.from_pretrained(tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="SHA-256 is not the one that was recorded"):
        CapsNet.from_pretrained(tmp_path)


@pytest.mark.parametrize("nonsense", ["", 7, [1], None])
def test_a_run_whose_result_is_nonsense_is_refused_in_one_line(
    model: CapsNet, tmp_path: Path, nonsense: object
) -> None:
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model": model_config(model), "train": {}}))
    (tmp_path / "result.json").write_text(json.dumps(nonsense))
    with pytest.raises(UserError, match="is damaged: it is not a JSON object"):
        CapsNet.from_pretrained(tmp_path)


def test_what_an_earlier_version_saved_is_still_read(model: CapsNet, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["weights_sha256"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    CapsNet.from_pretrained(tmp_path)


class FakeApi:
    """What the hub's mixin calls, without a network; `uploaded` are the files of the folder that was pushed."""

    uploaded: ClassVar[dict[str, bytes]] = {}
    options: ClassVar[dict[str, object]] = {}

    def __init__(self, token: str | None = None) -> None:
        self.options.clear()
        self.options["token"] = token

    def create_repo(self, repo_id: str, **options: object) -> SimpleNamespace:
        if repo_id == "me/forbidden":
            raise OSError("403 Forbidden\nsecond line")
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id: str, folder_path: Path, **options: object) -> SimpleNamespace:
        self.uploaded.clear()
        self.uploaded.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()})
        self.options.update(options)
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[FakeApi]:
    mixin = pytest.importorskip("huggingface_hub.hub_mixin")
    monkeypatch.setattr(mixin, "HfApi", FakeApi)
    return FakeApi


def test_push_goes_through_the_hubs_own_mixin(model: CapsNet, hub: type[FakeApi], tmp_path: Path) -> None:
    commit = model.push_to_hub("me/toys", branch="new", token="t", model_card_kwargs={"accuracy": 0.9})
    assert commit == "https://hub/me/toys/commit/1"
    assert hub.options["revision"] == "new"
    assert hub.options["token"] == "t"
    assert set(hub.uploaded) == {"config.json", "model.safetensors", "README.md"}
    card = hub.uploaded["README.md"].decode()
    assert 'pretrained("me/toys")' in card
    assert "| accuracy | 0.9 |" in card
    assert "repo" not in card.split("| accuracy")[1].split("```")[0]
    for name, content in hub.uploaded.items():
        (tmp_path / name).write_bytes(content)
    assert model_config(CapsNet.from_pretrained(tmp_path)) == model_config(model)


def test_what_the_hub_refuses_is_one_line(model: CapsNet, hub: type[FakeApi], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^me/forbidden could not be pushed: 403 Forbidden$"):
        model.push_to_hub("me/forbidden")
    with pytest.raises(UserError, match="leave config out"):
        model.save_pretrained(tmp_path, config={"classes": 3})


def test_facts_of_the_weights_in_the_package() -> None:
    for name, card in PRETRAINED.items():
        facts = card_facts(name)
        data, score = next(iter(card["scores"].items()))
        assert facts[f"accuracy on {data}"].startswith(f"{score['accuracy']:.2%} (")
        assert {"training", "recipe", "seeds", "limits"} <= facts.keys()
        assert facts["licence"].startswith("the weights: MIT; the data, ")
    assert card_facts("capsnet-svhn-small")["licence"].endswith("SVHN: for non-commercial use only")


def test_the_hub_is_an_extra(model: CapsNet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"torchcaps\[hub\]"):
        model.push_to_hub("me/toys")
    with pytest.raises(UserError, match=r"not a folder.*torchcaps\[hub\]"):
        CapsNet.from_pretrained("me/toys")
