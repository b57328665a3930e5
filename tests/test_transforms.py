"""Moving images about: exact, zero outside, every shift equally likely."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.testing import check_augmentation
from torchcaps.transforms import place, shift


@given(
    st.integers(1, 5), st.integers(1, 5), st.integers(1, 7), st.integers(1, 7), st.integers(-9, 9), st.integers(-9, 9)
)
def test_place_copies_pixel_by_pixel(h: int, w: int, height: int, width: int, y: int, x: int) -> None:
    image = torch.arange(1, h * w + 1).reshape(1, 1, h, w)
    placed = place(image, torch.tensor([[y, x]]), height, width)
    expected = torch.zeros(1, 1, height, width, dtype=torch.int64)
    for row in range(h):
        for column in range(w):
            if 0 <= y + row < height and 0 <= x + column < width:
                expected[0, 0, y + row, x + column] = image[0, 0, row, column]
    assert torch.equal(placed, expected)


def test_place_moves_each_image_on_its_own() -> None:
    images = torch.randint(256, (3, 2, 4, 4), dtype=torch.uint8)
    offsets = torch.tensor([[0, 0], [2, -1], [-3, 3]])
    together = place(images, offsets, 6, 6)
    for row in range(3):
        assert torch.equal(together[row], place(images[row : row + 1], offsets[row : row + 1], 6, 6)[0])


@pytest.mark.parametrize("pixels", [1, 2, 4])
def test_shift_conforms(pixels: int) -> None:
    check_augmentation(lambda images, generator: shift(images, pixels, generator), pixels=pixels)


def test_shift_by_nothing_changes_nothing() -> None:
    images = torch.randint(256, (3, 1, 5, 5), dtype=torch.uint8)
    assert torch.equal(shift(images, 0, torch.Generator()), images)
