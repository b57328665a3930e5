"""The weights that come with the package: whole, small, and as good as they say."""

import hashlib

import pytest
import torch

from torchcaps.analysis.evaluate import evaluate
from torchcaps.data import images, load_test_set
from torchcaps.models.pretrained import FOLDER, PRETRAINED
from torchcaps.models.registry import create_model


def test_both_small_networks_are_there() -> None:
    assert {"capsnet-mnist-small", "capsnet-multimnist-small"} <= set(PRETRAINED)


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
