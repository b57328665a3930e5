"""Accuracy on spoilt images: of sets and of tensors, for capsules and for a CNN."""

import pytest
import torch

from torchcaps.analysis.corruptions import corruption_table, lines, robustness
from torchcaps.data import images, load_test_set
from torchcaps.data.corruptions import CORRUPTIONS
from torchcaps.models.registry import create_model
from torchcaps.training.scoring import score


def test_what_is_lost_is_the_difference_to_clean_images() -> None:
    model, data = create_model("capsnet-multimnist-small", pretrained=True).eval(), load_test_set("multimnist-mini", 60)
    found = robustness(model, data)
    assert found["clean"] == score(model, data)["accuracy"] > 0.8
    assert list(found["corruptions"]) == list(CORRUPTIONS)
    for row in found["corruptions"].values():
        assert row["lost"] == pytest.approx(found["clean"] - row["accuracy"])
    assert robustness(model, data, ["noise"])["corruptions"]["noise"] == found["corruptions"]["noise"]


def test_tensors_are_scored_like_the_set_they_are_from() -> None:
    model = create_model("capsnet-mnist-small", pretrained=True).eval()
    digits = images("mnist-mini", "test").take(torch.arange(80))
    table = corruption_table(model, digits.images.float() / 255, digits.labels, ["specks", "rotation"])
    assert table["corruptions"] == robustness(model, digits, ["specks", "rotation"])["corruptions"]
    assert table["images"] == 80


def test_two_networks_stand_side_by_side() -> None:
    scores = {"clean": 0.9, "corruptions": {"noise": {"accuracy": 0.85, "lost": 0.05}}}
    other = {"clean": 0.8, "corruptions": {"noise": {"accuracy": 0.81, "lost": -0.01}}}
    header, found = lines([("capsules", scores), ("cnn", other)])
    assert header == ("", "capsules", "points lost", "cnn", "points lost")
    assert found == [("clean", "90.00%", "", "80.00%", ""), ("noise of 0.05", "85.00%", "5.00", "81.00%", "-1.00")]
