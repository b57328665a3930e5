"""The weights that come with the package: whole, small, and as good as they say."""

import hashlib

import pytest
import torch

from torchcaps.data import for_testing, images
from torchcaps.data.multimnist import RULES, Digits, PairSet
from torchcaps.evaluate import evaluate
from torchcaps.models.pretrained import FOLDER, PRETRAINED
from torchcaps.models.zoo import create_model

# A thousand digits or pairs leave about a point open; the cards hold the full test sets' scores.
SLACK = 0.015


def test_both_small_networks_are_there() -> None:
    assert {"capsnet-mnist-small", "capsnet-multimnist-small"} <= set(PRETRAINED)


@pytest.mark.parametrize("name", PRETRAINED)
def test_weights_are_whole_and_small(name: str) -> None:
    content = (FOLDER / f"{name}.safetensors").read_bytes()
    assert len(content) <= 6_000_000
    assert hashlib.sha256(content).hexdigest() == PRETRAINED[name]["sha256"]
    assert {"scores", "recipe", "command", "seconds"} <= set(PRETRAINED[name])


def test_mnist_weights_score_on_the_mini_test_digits() -> None:
    model = create_model("capsnet-mnist-small", pretrained=True)
    accuracy = evaluate(model, for_testing("mnist-mini", images("mnist-mini", "test")))["accuracy"]
    assert accuracy >= PRETRAINED["capsnet-mnist-small"]["scores"]["mnist"]["accuracy"] - SLACK


def test_multimnist_weights_score_on_pairs_of_the_mini_test_digits() -> None:
    model = create_model("capsnet-multimnist-small", pretrained=True)
    pairs = PairSet("multimnist", Digits(images("mnist-mini", "test"), RULES["multimnist"]), 1000)
    accuracy = evaluate(model, pairs)["accuracy"]
    assert accuracy >= PRETRAINED["capsnet-multimnist-small"]["scores"]["multimnist"]["accuracy"] - 2 * SLACK


def test_a_pretrained_model_draws_what_it_sees() -> None:
    model = create_model("capsnet-mnist-small", pretrained=True).eval()
    batch = next(images("mnist-mini", "test").batches(64))
    with torch.no_grad():
        error = (model(batch.images, batch.labels[:, 0]).reconstruction - batch.images).square().mean()
    assert error < 0.5 * batch.images.var()
