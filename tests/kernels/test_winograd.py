"""Winograd's tiles against PyTorch's convolution."""

import shutil

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from torchcaps.kernels import native, winograd
from torchcaps.kernels.winograd import winograd_conv2d

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

SHAPES = [
    *[(4, 16, 8, 8, 32, 1), (3, 5, 9, 7, 6, 1), (2, 20, 6, 10, 17, 0), (1, 1, 3, 3, 1, 0), (2, 33, 4, 4, 3, 2)],
    *[(4, 16, 6, 6, 32, 1), (2, 20, 14, 8, 17, 0), (3, 5, 11, 6, 7, 1), (2, 128, 6, 6, 64, 1)],
    *[(4, 16, 14, 14, 32, 0, 4, 2), (3, 5, 9, 7, 6, 1, 4, 2), (2, 20, 18, 18, 17, 0, 4, 2), (2, 33, 8, 7, 3, 1, 3, 2)],
    *[(2, 40, 14, 14, 24, 0, 4, 2), (2, 24, 12, 13, 40, 1)],  # a last half of 16 channels
    *[(64, 16, 9, 9, 24, 1), (70, 8, 6, 6, 8, 1)],  # enough tiles for sums of their own for parts of the images
    *[(2, 17, 13, 14, 8, 2, 5, 2), (2, 6, 14, 14, 8, 0, 6, 2), (2, 18, 6, 9, 8, 1, 2, 1), (1, 1, 3, 3, 1, 0, 3, 2)],
]
"""Batch, channels, height, width, outputs, padding; kernel and stride if they are not 3 and 1."""
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "pixel-major": lambda x: x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
}


def _close(ours: Tensor, exact: Tensor) -> None:
    assert (ours - exact).norm() <= 1e-5 * exact.norm()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_and_gradients_are_those_of_the_direct_convolution(shape: tuple[int, ...], layout: str) -> None:
    b, c, h, w, o, padding, side, stride = (*shape, 3, 1)[:8]
    torch.manual_seed(0)
    x, weight = torch.randn(b, c, h, w), torch.randn(o, c, side, side)
    exact = [tensor.double().requires_grad_() for tensor in (x, weight)]
    ours = [LAYOUTS[layout](tensor).detach().requires_grad_() for tensor in (x, weight)]
    expected = conv2d(*exact, None, stride, padding)
    found = winograd_conv2d(*ours, None, stride, padding)
    upstream = torch.randn_like(expected)
    expected.backward(upstream)
    found.backward(upstream.float())
    _close(found.detach(), expected.detach())
    for own, other in zip(ours, exact, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        _close(own.grad, other.grad)


@pytest.mark.parametrize("images", [6, 70])
def test_the_number_of_threads_changes_nothing(images: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(images, 24, 8, 8), torch.randn(8, 24, 3, 3)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        winograd_conv2d(*leaves, None, 1, 1).square().sum().backward()
        results.append([leaf.grad for leaf in leaves])
    torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("outputs", "tile"), [((8, 8), 4), ((6, 6), 6), ((4, 4), 4), ((12, 12), 6), ((14, 14), 4)])
def test_tiles_of_the_size_that_wastes_less(outputs: tuple[int, int], tile: int) -> None:
    assert winograd.cut(outputs).tile == tile


def test_transformed_weights_are_kept_and_noticed_to_change() -> None:
    weight, bias, x = torch.randn(8, 8, 3, 3), torch.randn(8), torch.randn(2, 8, 8, 8)
    with torch.no_grad():
        for _ in range(2):
            _close(winograd_conv2d(x, weight, bias, 1, 1), conv2d(x, weight, bias, 1, 1))
            weight.mul_(2)


def test_without_a_compiler_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda name: None)
    assert not winograd.supports(torch.randn(2, 8, 8, 8), torch.randn(4, 8, 3, 3), 1)


def test_a_graph_can_be_walked_twice_if_asked_for() -> None:
    x, weight = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3, requires_grad=True)
    loss = winograd_conv2d(x, weight, None, 1, 1).sum()
    (first,) = torch.autograd.grad(loss, weight, retain_graph=True)
    (second,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError):
        loss.backward()
