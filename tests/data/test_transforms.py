"""Moving and colouring images: exact where it can be, zero outside, equal seeds equal bytes."""

from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from torchcaps.core.errors import UserError
from torchcaps.data.transforms import (
    PRESETS,
    Augmentation,
    affine,
    affine_matrices,
    augmentation,
    bends,
    colour_jitter,
    cutout,
    narrower,
    noisy,
    place,
    random_affine,
    random_flip,
    shift,
    tone,
    wider,
)
from torchcaps.testing import check_augmentation

EVERYTHING = Augmentation(
    shift=3,
    rotation=30,
    scale=0.3,
    shear=0.2,
    flip=True,
    crop=0.2,
    colour=0.5,
    cutout=0.3,
    strokes=0.5,
    bend=2,
    noise=0.1,
)


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=Generator().manual_seed(0))


def matrices(rotation: float = 0, shear: float = 0, scale: tuple = (1, 1), translation: tuple = (0, 0)) -> Tensor:
    scalars = (torch.tensor([float(value)]) for value in (rotation, shear))
    return affine_matrices(*scalars, torch.tensor([scale]).float(), torch.tensor([translation]).float())


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
    check_augmentation(Augmentation(shift=pixels), pixels=pixels)


def test_shift_by_nothing_changes_nothing() -> None:
    images = torch.randint(256, (3, 1, 5, 5), dtype=torch.uint8)
    assert torch.equal(shift(images, 0, torch.Generator()), images)


@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(-8, 8), st.integers(-8, 8)
)
def test_affine_by_whole_pixels_is_place(h: int, w: int, height: int, width: int, y: int, x: int) -> None:
    images = noise(1, 2, h, w)
    # Centres of sides that differ by an odd number of pixels lie half a pixel apart.
    centred = (y + (h - height) / 2, x + (w - width) / 2)
    moved = affine(images, matrices(translation=centred), height, width)
    assert torch.equal(moved, place(images, torch.tensor([[y, x]]), height, width))


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (2, 3, 7, 12)])
def test_the_identity_changes_nothing(shape: tuple[int, ...]) -> None:
    images = noise(*shape)
    same = matrices().expand(len(images), 2, 3)
    assert torch.equal(affine(images, same), images)
    torch.testing.assert_close(affine(images / 255, same), images / 255, atol=1e-5, rtol=0)


@pytest.mark.parametrize("quarters", [-1, 1, 2, 3])
@pytest.mark.parametrize("side", [8, 9])
def test_right_angles_are_rot90(quarters: int, side: int) -> None:
    images = noise(3, 2, side, side)
    turned = affine(images, matrices(rotation=90 * quarters).expand(3, 2, 3))
    assert torch.equal(turned, images.rot90(quarters, (2, 3)))


def test_scale_and_shear_go_the_way_they_say() -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[..., 6, 4] = 1  # two below the centre
    image[..., 4, 5] = 1  # one to its right
    stretched = affine(image, matrices(scale=(1.5, 2)))
    assert stretched[0, 0, 7, 4] == pytest.approx(1, abs=1e-5)
    assert stretched[0, 0, 4, 6] == pytest.approx(1, abs=1e-5)
    slanted = affine(image, matrices(shear=0.5))
    assert slanted[0, 0, 6, 5] == pytest.approx(1, abs=1e-5)
    assert slanted[0, 0, 4, 5] == pytest.approx(1, abs=1e-5)


def test_a_map_and_its_inverse_bring_a_smooth_image_back() -> None:
    ramp = torch.linspace(0, 1, 21)
    image = (ramp[:, None] * ramp)[None, None]
    there = matrices(rotation=20, shear=0.2, scale=(0.9, 1.1), translation=(1.5, -2))
    square = torch.cat([there, torch.tensor([[[0.0, 0.0, 1.0]]])], 1)
    back = affine(affine(image, there), torch.linalg.inv(square)[:, :2])
    torch.testing.assert_close(back[..., 7:14, 7:14], image[..., 7:14, 7:14], atol=0.01, rtol=0)


def test_random_affine_is_one_map_for_each_image() -> None:
    images = noise(1, 1, 12, 12).repeat(50, 1, 1, 1)
    moved = random_affine(images, Generator().manual_seed(0), rotation=20, scale=0.2, shear=0.2, shift=2)
    assert len({image.numpy().tobytes() for image in moved}) == 50
    nothing = random_affine(images, Generator().manual_seed(0))
    assert torch.equal(nothing, images)


def test_a_blown_up_window_shows_nothing_from_outside() -> None:
    white = torch.full((200, 1, 10, 14), 255, dtype=torch.uint8)
    assert random_affine(white, Generator().manual_seed(0), crop=0.5).min() == 255
    columns = torch.linspace(0, 1, 40).expand(200, 1, 40, 40)
    seen = random_affine(columns, Generator().manual_seed(0), crop=0.5)[..., 20, 1:-1]
    shares = (seen.amax(-1) - seen.amin(-1)).flatten()
    assert 0.45 < shares.min() < 0.55
    assert shares.max() > 0.9


def test_flips_exchange_left_and_right_of_half_the_images() -> None:
    images = noise(1000, 3, 4, 5)
    flipped = random_flip(images, Generator().manual_seed(0))
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    assert torch.equal(mirrored, ~(flipped == images).flatten(1).all(1))
    assert 430 < mirrored.sum() < 570


def test_each_part_of_the_jitter_changes_what_it_names() -> None:
    images = 0.25 + noise(64, 3, 8, 8) / 1020
    random = Generator().manual_seed(0)
    ratio = colour_jitter(images, random, brightness=0.4) / images
    assert (ratio.flatten(1).amax(1) - ratio.flatten(1).amin(1)).max() < 1e-4
    assert 0.6 <= ratio.min() < 0.65
    assert 1.35 < ratio.max() <= 1.4001

    luma = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
    harder = colour_jitter(images, random, contrast=0.4)
    torch.testing.assert_close((harder * luma).sum(1).mean((1, 2)), (images * luma).sum(1).mean((1, 2)))
    spread = harder.flatten(1).std(1) / images.flatten(1).std(1)
    assert 0.6 < spread.min() < 0.7
    assert 1.3 < spread.max() < 1.4

    vivid = colour_jitter(images, random, saturation=0.4)
    torch.testing.assert_close((vivid * luma).sum(1), (images * luma).sum(1))
    assert not torch.allclose(vivid, images)
    grey = images[:, :1].repeat(1, 3, 1, 1)
    torch.testing.assert_close(colour_jitter(grey, random, saturation=0.9), grey)
    torch.testing.assert_close(colour_jitter(images[:, :2], random, saturation=0.9), images[:, :2])


def test_cutout_leaves_a_hole_of_the_size_it_was_asked_for() -> None:
    images = torch.full((2000, 2, 8, 12), 7, dtype=torch.uint8)
    cut = cutout(images, 0.25, Generator().manual_seed(0))
    holes = (cut == 0).flatten(2).sum(2)
    assert torch.equal(holes[:, 0], holes[:, 1])
    assert holes.max() == 2 * 3
    assert holes.min() == 1 * 2
    assert (cut == 0).any(0).all()


@pytest.mark.parametrize("kind", [*PRESETS.values(), EVERYTHING], ids=[*PRESETS, "everything"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_augmentation_is_a_pure_function_of_the_generator(kind: Augmentation, channels: int) -> None:
    images = noise(16, channels, 12, 12)
    original = images.clone()
    one, same, other = (kind(images, Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert one.dtype == torch.uint8
    assert one.shape == images.shape
    assert torch.equal(one, same)
    assert torch.equal(images, original)
    assert torch.equal(one, other) == (kind == PRESETS["none"])
    floats = kind(images / 255, Generator().manual_seed(1))
    assert floats.dtype == torch.float32
    assert floats.min() >= 0
    assert floats.max() <= 1 + 1e-6
    torch.testing.assert_close(floats, one / 255, atol=3 / 255, rtol=0)  # rounded after each part


@pytest.mark.parametrize("field", sorted(asdict(Augmentation()).keys() - {"part", "brightness", "contrast"}))
def test_every_field_does_something(field: str) -> None:
    images = noise(8, 3, 12, 12)
    alone = Augmentation(**{field: asdict(EVERYTHING)[field]})
    assert not torch.equal(alone(images, Generator().manual_seed(0)), images)


def test_a_point_of_the_canvas_looks_as_far_away_as_it_is_bent() -> None:
    images = noise(2, 1, 6, 8)
    bend = torch.tensor([1.0, -2.0])[None, :, None, None].expand(2, 2, 6, 8)  # one row down, two columns to the left
    expected = place(images, torch.tensor([[-1, 2]]).expand(2, 2), 6, 8)
    assert torch.equal(affine(images, matrices().expand(2, 2, 3), bend=bend), expected)


def test_bends_are_smooth_and_as_large_as_told() -> None:
    drawn = bends(50, 48, 48, 3.0, Generator().manual_seed(0))
    assert 2 < drawn.abs().amax() < 4
    assert drawn.diff(dim=2).abs().amax() < 1  # neighbours never change places: nothing is folded over


def test_what_lies_outside_a_turned_image_has_the_colour_of_its_border() -> None:
    grey = torch.full((4, 1, 9, 9), 200, dtype=torch.uint8)
    assert torch.equal(random_affine(grey, Generator().manual_seed(0), rotation=45, scale=0.5, bend=2), grey)


def test_an_unknown_preset_is_refused_by_name() -> None:
    assert augmentation("digits") is PRESETS["digits"]
    with pytest.raises(UserError, match="'strong'; there are none, shift, digits, natural"):
        augmentation("strong")


def test_a_part_of_the_images_is_left_as_it_is() -> None:
    images = noise(400, 1, 8, 8)
    changed = Augmentation(flip=True, strokes=1.0, part=0.3)(images, Generator().manual_seed(0))
    assert 0.2 < (changed != images).flatten(1).any(1).float().mean() < 0.4


def test_a_part_of_the_images_gets_another_tone() -> None:
    images = noise(400, 1, 8, 8)
    changed = Augmentation(brightness=0.2, part=0.3)(images, Generator().manual_seed(0))
    assert changed.dtype == torch.float32
    assert 0.2 < ((changed - images / 255).abs().amax((1, 2, 3)) > 1e-6).float().mean() < 0.4


def test_brightness_is_added_and_contrast_is_about_the_mean_of_a_channel() -> None:
    images = noise(200, 3, 8, 8)
    pixels = images / 255
    brighter = tone(images, 0.25, 0.0, Generator().manual_seed(0)) - pixels
    assert torch.allclose(brighter, brighter[:, :1, :1, :1].expand_as(pixels), atol=1e-6)
    assert 0.2 < brighter.abs().amax() <= 0.25
    harder = tone(images, 0.0, 0.8, Generator().manual_seed(0))
    assert torch.allclose(harder.mean((2, 3)), pixels.mean((2, 3)), atol=1e-6)
    factors = harder.std((1, 2, 3)) / pixels.std((1, 2, 3))
    assert 0.1 < factors.amin() < 0.4
    assert 1.6 < factors.amax() < 1.9


def test_noise_of_up_to_a_deviation() -> None:
    grey = torch.full((300, 1, 16, 16), 128, dtype=torch.uint8)
    spread = (noisy(grey, 0.1, Generator().manual_seed(0)) / 255).std((1, 2, 3))
    assert spread.amin() < 0.01
    assert 0.08 < spread.amax() < 0.12


def test_strokes_grow_and_shrink_by_a_pixel() -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[..., 3:6, 2:7] = 1.0
    assert wider(image).sum() == 4 * 6
    assert narrower(image).sum() == 2 * 4
    assert narrower((255 * image).byte()).sum() == 255 * 2 * 4
