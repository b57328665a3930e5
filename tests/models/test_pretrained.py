"""The weights that come with the package: whole, small, and as good as they say."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from torchcaps.analysis.evaluate import evaluate
from torchcaps.core.errors import UserError
from torchcaps.data import images, load_test_set
from torchcaps.models.pretrained import FOLDER, PRETRAINED, load_pretrained
from torchcaps.models.registry import create_model
from torchcaps.training.fit import fit
from torchcaps.training.runs import load_run


def test_the_networks_of_the_documentation_are_there() -> None:
    assert {"capsnet-mnist-small", "capsnet-multimnist-small", "capsnet-multimnist-fine"} <= set(PRETRAINED)


@pytest.mark.parametrize("name", PRETRAINED)
def test_weights_are_whole_and_small(name: str) -> None:
    content = (FOLDER / f"{name}.safetensors").read_bytes()
    assert len(content) <= 6_000_000
    assert hashlib.sha256(content).hexdigest() == PRETRAINED[name]["sha256"]
    assert {"scores", "recipe", "command", "seconds"} <= set(PRETRAINED[name])


@pytest.mark.parametrize(
    ("name", "data"), [("capsnet-mnist-small", "mnist-mini"), ("capsnet-multimnist-small", "multimnist-mini")]
)
def test_weights_score_what_their_card_says(name: str, data: str) -> None:
    card = PRETRAINED[name]["scores"][data]
    scores = evaluate(create_model(name, pretrained=True), load_test_set(data))
    assert scores["images"] == card["images"] >= 1000
    # Another processor may round a handful of close calls the other way.
    assert scores["accuracy"] == pytest.approx(card["accuracy"], abs=0.002)
    assert scores["reconstruction_mse"] == pytest.approx(card["reconstruction_mse"], rel=1e-3)


def test_a_pretrained_model_draws_what_it_sees() -> None:
    model = create_model("capsnet-mnist-small", pretrained=True).eval()
    batch = next(images("mnist-mini", "test").batches(64))
    with torch.no_grad():
        error = (model(batch.images, batch.labels[:, 0]).reconstruction - batch.images).square().mean()
    assert error < 0.5 * batch.images.var()


def test_other_classes_keep_the_body_and_get_a_new_head() -> None:
    whole, other = (create_model("capsnet-mnist-small", pretrained=True, **k) for k in ({}, {"classes": 7}))
    theirs, ours = whole.state_dict(), other.state_dict()
    body = [key for key in ours if key.startswith(("backbone.", "primary."))]
    assert body
    assert all(torch.equal(ours[key], theirs[key]) for key in body)
    assert ours["classes.weight"].shape[1] == 7
    assert torch.equal(ours["decoder.layers.2.weight"], theirs["decoder.layers.2.weight"]), "below the classes' poses"
    assert other(torch.rand(2, 1, 28, 28)).lengths.shape == (2, 7)


@pytest.mark.parametrize("changed", [{"channels": 64}, {"routing": "uniform"}, {"image": (1, 32, 32)}])
def test_other_changes_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="no other change"):
        create_model("capsnet-mnist-small", pretrained=True, **changed)


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(UserError, match=r"do not fit this network: backbone.* has \["):
        load_pretrained("capsnet-mnist-small", create_model("capsnet-multimnist-small"))


def test_a_training_can_begin_with_them(tmp_path: Path) -> None:
    """Five classes of digits, twenty steps: what the body knows already makes the difference."""
    digits = images("mnist-mini", "train")
    few = digits.labels < 5
    data = (digits.images[few], digits.labels[few])
    began = {"batch": 64, "steps": 20, "validation": 0, "lr": 3e-3, "quiet": True}
    tuned, scratch = (
        fit("capsnet-mnist-small", data, out=tmp_path / str(known), pretrained=known, **began)["accuracy"]
        for known in (True, False)
    )
    assert tuned > 0.97 > scratch
    assert load_run(tmp_path / "True")[0].config.classes == 5
    with pytest.raises(UserError, match="models by name"):
        fit(create_model("capsnet-mnist-small"), data, out=tmp_path / "other", pretrained=True, **began)
