"""Segmentation of overlapping digits: the rules do what they say, and perfect pictures are perfect segmentations."""

import pytest
import torch

from torchcaps.analysis.segmentation import RULES, compare, segmentation
from torchcaps.data import load_test_set
from torchcaps.models.registry import create_model


def test_the_digits_themselves_are_a_perfect_segmentation() -> None:
    batch = next(load_test_set("multimnist-mini", 20).batches(20))
    for rule in RULES.values():
        found = compare(rule, batch.targets, batch.images, batch.targets)
        assert found.iou.item() == pytest.approx(20)
        assert torch.equal(found.ink, found.covered)
        assert torch.equal(found.both, found.found)
        assert found.both > 100


def test_a_pixel_counts_from_its_first_shade_or_from_half() -> None:
    picture = torch.tensor([0.0, 0.0019, 0.002, 0.4, 0.6, 0.9]).view(1, 1, 1, 1, 6)
    image = torch.tensor([1, 1, 1, 1, 1, 0.0]).view(1, 1, 1, 6)
    assert RULES["as written"].claim(picture, image).flatten().tolist() == [False, False, True, True, True, True]
    assert RULES["half"].claim(picture, image).flatten().tolist() == [False, False, False, False, True, False]


def test_what_is_claimed_is_counted() -> None:
    digits = torch.zeros(1, 2, 1, 1, 6)
    digits[0, 0, ..., :4], digits[0, 1, ..., 2:] = 1, 1
    pictures = digits.clone()
    pictures[0, 1, ..., 2], pictures[0, 1, ..., 5] = 0, 0
    found = compare(RULES["half"], pictures, digits.amax(1), digits)
    assert found.iou.item() == pytest.approx((1 + 2 / 4) / 2)
    assert (found.ink, found.covered, found.both, found.found) == (6, 5, 2, 1)


def test_the_shipped_network_takes_digits_apart() -> None:
    model = create_model("capsnet-multimnist-small", pretrained=True).eval()
    found = segmentation(model, load_test_set("multimnist-mini", 300), most=250)
    assert found["half"]["images"] == 250
    assert found["half"]["iou"] > 0.6
    assert found["as written"]["covered"] > found["half"]["covered"] > 0.6
