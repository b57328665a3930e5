"""The network that looks where the ink is sees the same wherever that is, and draws it where it was."""

import pytest
import torch
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.data.transforms import place
from torchcaps.models.registry import create_model
from torchcaps.models.window import Window

WINDOW = Window((1, 36, 36), 28)


def _blot(top: int, left: int) -> Tensor:
    """A blot of ink, 20x12 pixels, on a 36x36 image."""
    ink = torch.rand(1, 1, 20, 12, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.2
    return place(ink, torch.tensor([[top, left]]), 36, 36)


def test_the_window_follows_the_ink() -> None:
    images = torch.cat([_blot(6, 9), _blot(9, 14), torch.zeros(1, 1, 36, 36)])
    assert WINDOW.corner(images).tolist() == [[2, 1], [5, 6], [4, 4]]
    seen = WINDOW(images)
    assert torch.equal(seen[0], images[0, :, 2:30, 1:29])
    assert torch.equal(seen[0], seen[1])


@pytest.mark.parametrize(("top", "left", "corner"), [(0, 0, [0, 0]), (16, 24, [8, 8]), (0, 24, [0, 8])])
def test_the_window_stays_inside_and_loses_no_ink(top: int, left: int, corner: list[int]) -> None:
    image = _blot(top, left)
    assert WINDOW.corner(image).tolist() == [corner]
    assert WINDOW(image).sum() == pytest.approx(image.sum())
    assert torch.equal(WINDOW.put_back(WINDOW(image)[:, None], WINDOW.corner(image))[:, 0], image)


def test_faint_paper_is_not_ink() -> None:
    assert WINDOW.corner((_blot(6, 9) + 0.05).clamp(max=1)).tolist() == [[2, 1]]


def test_pictures_without_a_corner_are_put_in_the_middle() -> None:
    back = WINDOW.put_back(torch.ones(2, 3, 1, 28, 28))
    assert back.shape == (2, 3, 1, 36, 36)
    assert back.sum() == 2 * 3 * 28 * 28
    assert (back[..., 4:32, 4:32] == 1).all()


def test_gradients_reach_the_pixels_that_were_seen_and_no_others() -> None:
    image = _blot(0, 0).requires_grad_()
    (gradient,) = torch.autograd.grad(WINDOW(image).sum(), image)
    assert (gradient[..., :28, :28] == 1).all()
    assert gradient.sum() == 28 * 28


def test_a_network_with_a_window_moves_its_picture_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet-multimnist-small").eval()
    with torch.no_grad():
        here, there = (model(_blot(*at)) for at in ((6, 9), (9, 14)))
    torch.testing.assert_close(here.lengths, there.lengths)
    torch.testing.assert_close(here.capsules, there.capsules)
    moved = here.reconstruction.roll((3, 5), (3, 4))
    torch.testing.assert_close(there.reconstruction, moved)


def test_a_network_whose_window_is_larger_than_the_image_is_refused() -> None:
    with pytest.raises(UserError, match="window of 40 pixels"):
        create_model("capsnet-multimnist-small", window=40)


@pytest.mark.parametrize("corner", [(0, 0), (0, 35), (35, 0), (35, 35)])
def test_a_speck_hardly_moves_the_window(corner: tuple[int, int]) -> None:
    image = _blot(6, 9)
    image[0, 0, corner[0], corner[1]] = 1.0
    assert (WINDOW.corner(image) - WINDOW.corner(_blot(6, 9))).abs().max() <= 1


def test_grey_paper_faint_ink_and_noise_hardly_move_the_window() -> None:
    image = _blot(6, 9)
    noise = 0.05 * torch.randn(image.shape, generator=torch.Generator().manual_seed(1))
    for spoilt in (image.clamp(min=0.12), 0.5 * image, (image + noise).clamp(0, 1)):
        assert (WINDOW.corner(spoilt) - WINDOW.corner(image)).abs().max() <= 1
