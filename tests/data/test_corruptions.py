"""Spoilt images: each way does what it says, the same in every batch, to images of any size."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchcaps.data import images
from torchcaps.data.corruptions import CORRUPTIONS, Corrupted, corrupt


def digits(count: int = 40) -> Tensor:
    return images("mnist-mini", "test").images[:count].float() / 255


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 36, 36), (3, 24, 40), (2, 9, 8)])
def test_images_of_any_size_stay_images(name: str, shape: tuple[int, int, int]) -> None:
    before = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0))
    kept = before.clone()
    after = corrupt(name, before)
    assert after.shape == before.shape
    assert torch.equal(before, kept), "the images themselves are not touched"
    assert after.min() >= 0
    assert after.max() <= 1
    changed = (after != before).flatten(1).any(1)
    assert changed.any() if name == "specks" else changed.all(), "a small image may stay without specks"


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_spoilt_alike_in_every_batch(name: str) -> None:
    whole = corrupt(name, digits())
    assert torch.equal(whole, corrupt(name, digits()))
    assert torch.equal(whole[7:9], corrupt(name, digits()[7:9], first=7))
    test = images("mnist-mini", "test").take(torch.arange(40))
    for size in (40, 7):
        assert torch.equal(torch.cat([batch.images for batch in Corrupted(test, name).batches(size)]), whole)


def test_one_pixel_in_a_corner_is_grey() -> None:
    before = torch.zeros(200, 2, 6, 5)
    places = corrupt("grey-pixel", before).nonzero()
    assert len(places) == 200 * 2, "in both channels"
    assert {tuple(place) for place in places[:, 2:].tolist()} == {(0, 0), (0, 4), (5, 0), (5, 4)}
    assert torch.equal(corrupt("grey-pixel", before).amax((1, 2, 3)), torch.full((200,), 0.2))


def test_one_in_two_hundred_pixels_is_white() -> None:
    after = corrupt("specks", torch.zeros(100, 3, 36, 36))
    assert set(after.unique().tolist()) == {0.0, 1.0}
    assert after.mean() == pytest.approx(0.005, rel=0.1)
    assert torch.equal(after[:, 0], after[:, 2])


def test_noise_is_as_wide_as_it_says() -> None:
    after = corrupt("noise", torch.full((20, 1, 36, 36), 0.5))
    assert after.std() == pytest.approx(0.05, rel=0.02)
    assert after.mean() == pytest.approx(0.5, abs=0.001)


@given(st.floats(0, 1), st.floats(0, 1))
def test_contrast_and_ground(a: float, b: float) -> None:
    image = torch.tensor([a, b], dtype=torch.float32).view(1, 1, 1, 2)
    low, high = image.min(), image.max()
    assert corrupt("contrast", image).aminmax() == (low, low + 0.5 * (high - low))
    torch.testing.assert_close(corrupt("background", image), 0.12 + 0.88 * image)


def test_strokes_grow_and_shrink_by_a_pixel() -> None:
    bar = torch.zeros(1, 1, 12, 12)
    bar[..., 3:9, 5:8] = 1
    for name, wanted in (("thicker", (7, 4)), ("thinner", (5, 2))):
        after = corrupt(name, bar)[0, 0]
        assert (int(after.any(1).sum()), int(after.any(0).sum())) == wanted
    assert torch.equal(corrupt("thinner", torch.ones(1, 1, 4, 4)), torch.ones(1, 1, 4, 4)), "the border takes nothing"


def test_images_turn_both_ways() -> None:
    bar = torch.zeros(60, 1, 41, 41)
    bar[:, :, 5:36, 20] = 1
    after = corrupt("rotation", bar)
    rows, columns = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    ink = after[:, 0] / after[:, 0].sum((1, 2), keepdim=True)
    slope = (ink * rows * columns).sum((1, 2)) / (ink * rows * rows).sum((1, 2))
    angles = torch.rad2deg(slope.atan())
    torch.testing.assert_close(angles.abs(), torch.full((60,), 15.0), atol=0.3, rtol=0)
    assert 15 < (angles > 0).sum() < 45


def test_a_tenth_is_cut_off_by_a_border() -> None:
    box = torch.zeros(80, 1, 36, 36)
    box[:, :, 8:28, 10:30] = 1
    after = corrupt("cut-off", box)[:, 0]
    assert torch.equal(after.sum((1, 2)), torch.full((80,), 18.0 * 20))
    borders: list[Callable[[Tensor], Tensor]] = [lambda x: x[:, 0], lambda x: x[:, -1], lambda x: x[:, :, 0]]
    borders.append(lambda x: x[:, :, -1])
    touched = torch.stack([border(after).sum(1) == 20 for border in borders])
    assert torch.equal(touched.sum(0), torch.ones(80, dtype=torch.int64))
    assert touched.any(1).all()
