"""Affinely transformed digits: the recipe's ranges, no ink lost, the same bytes everywhere."""

import hashlib

import numpy as np
import pytest
import torch

from torchcaps import data as named
from torchcaps.data import sources
from torchcaps.data.synthetic import affnist_style
from torchcaps.data.transforms import affine, bounding_boxes


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return sources.load_arrays("mnist-mini", "test")[0]


@pytest.fixture(scope="module")
def transformed(digits: np.ndarray) -> np.ndarray:
    return affnist_style.transformed(digits, "test")


def test_the_set_is_pinned(transformed: np.ndarray) -> None:
    assert transformed.shape == (1000, 1, 40, 40)
    assert (
        hashlib.sha256(transformed.tobytes()).hexdigest()
        == "55d3919ff581451c041662e92fa63493b1ee99b76ea030456aa1534b1e2a98ac"
    )


def test_a_part_of_the_images_gets_the_maps_of_all(digits: np.ndarray, transformed: np.ndarray) -> None:
    np.testing.assert_array_equal(affnist_style.transformed(digits[:70], "test"), transformed[:70])


def test_repeats_begin_with_the_set_and_go_on_with_other_maps(digits: np.ndarray, transformed: np.ndarray) -> None:
    twice = affnist_style.transformed(digits, "test", repeats=2)
    np.testing.assert_array_equal(twice[:1000], transformed)
    assert (twice[1000:] != transformed).any((1, 2, 3)).all()
    assert (affnist_style.transformed(digits[:50], "train") != transformed[:50]).any((1, 2, 3)).all()
    with pytest.raises(ValueError, match="1 to 32"):
        affnist_style.transformed(digits, "test", repeats=33)


def test_no_ink_leaves_the_canvas(digits: np.ndarray, transformed: np.ndarray, monkeypatch) -> None:
    """On a canvas with a margin there is nothing in the margin, and the same in the middle."""
    drawing = affnist_style._draw
    monkeypatch.setattr(affnist_style, "BLOCK", len(digits))

    def with_margin(images: np.ndarray, matrices: np.ndarray, translations: np.ndarray) -> np.ndarray:
        monkeypatch.setattr(affnist_style, "SIDE", 60)
        wide = drawing(images, matrices, translations + 10)
        monkeypatch.setattr(affnist_style, "SIDE", 40)
        np.testing.assert_array_equal(wide[:, 10:50, 10:50], transformed[:, 0])
        wide[:, 10:50, 10:50] = 0
        assert not wide.any()
        return wide[:, 10:50, 10:50]

    monkeypatch.setattr(affnist_style, "_draw", with_margin)
    affnist_style.transformed(digits, "test")


def test_the_integer_sampler_agrees_with_the_float_one(digits: np.ndarray) -> None:
    """The plain twin: the same maps through `transforms.affine`, whose points are counted from the centres."""
    images = digits[:50]
    matrices, translations = affnist_style._maps(images[:, 0], np.random.RandomState(0).random_sample((50, 6)))
    centred = translations + matrices @ np.array([13.5, 13.5]) - 19.5
    maps = torch.from_numpy(np.concatenate([matrices, centred[:, :, None]], 2))
    expected = affine(torch.from_numpy(images), maps, 40, 40)[:, 0].numpy()
    drawn = affnist_style._draw(images[:, 0], matrices, translations)
    assert np.abs(drawn.astype(int) - expected).max() <= 4
    assert np.abs(drawn.astype(int) - expected).mean() < 0.1


def test_maps_fill_the_ranges_of_the_recipe(digits: np.ndarray, transformed: np.ndarray) -> None:
    matrices, _ = affnist_style._maps(digits[:, 0], np.random.RandomState(0).random_sample((1000, 6)))
    rotation = np.degrees(np.arctan2(-matrices[:, 0, 1], matrices[:, 1, 1]))
    across = np.hypot(matrices[:, 0, 1], matrices[:, 1, 1])
    down = np.linalg.det(matrices) / across
    for values, low, high in ((rotation, -20, 20), (across, 0.8, 1.2), (down, 0.8, 1.2)):
        assert low <= values.min() < low + 0.02 * (high - low)
        assert high >= values.max() > high - 0.02 * (high - low)
        assert abs(values.mean() - (low + high) / 2) < 0.05 * (high - low)
    boxes = bounding_boxes(torch.from_numpy(transformed[:, 0]) > 0)
    assert boxes[:, :2].min() == 0
    assert boxes[:, 2:].max() == 40


def test_an_empty_image_stays_empty() -> None:
    assert not affnist_style.transformed(np.zeros((2, 1, 28, 28), np.uint8), "test").any()


def test_it_is_a_set_by_name() -> None:
    test_set = named.load_test_set("affnist-style-mini")
    assert len(test_set) == 1000
    batch = next(test_set.batches(10))
    assert batch.images.shape == (10, 1, 40, 40)
    training = named.resolve("affnist-style-mini").stream(named.images("affnist-style-mini", "train"), seed=0)
    assert training.batch(0, 4).images.shape == (4, 1, 40, 40)
