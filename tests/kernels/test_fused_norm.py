"""Pooling, batch normalisation and ReLU in one operator against PyTorch's own three."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from torchcaps.kernels import fused_norm
from torchcaps.nn.norm import BatchNorm


def maps(b: int, c: int, h: int, w: int, pixel_major: bool, mean: float = 0.0) -> Tensor:
    torch.manual_seed(b * c * h * w)
    x = torch.randn(h, w, b, c).permute(2, 3, 0, 1) if pixel_major else torch.randn(b, h, w, c).permute(0, 3, 1, 2)
    return (x + mean).requires_grad_()


def layer(channels: int) -> BatchNorm:
    norm = BatchNorm(channels, momentum=0.3)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, channels))
        norm.bias.copy_(torch.linspace(-1, 1, channels))
    return norm


def plain(norm: nn.BatchNorm2d, x: Tensor, pool: bool) -> Tensor:
    return relu(norm(max_pool2d(x, 2) if pool else x))


@pytest.mark.parametrize("pool", [True, False], ids=["pooled", "whole"])
@pytest.mark.parametrize("pixel_major", [True, False], ids=["pixel-major", "channels-last"])
@pytest.mark.parametrize("size", [(3, 5, 7, 6), (2, 33, 9, 9), (4, 16, 2, 2), (20, 3, 12, 8)])
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_as_pytorch_in_double_precision(
    size: tuple[int, int, int, int], pixel_major: bool, pool: bool, mean: float
) -> None:
    x, norm = maps(*size, pixel_major, mean), layer(size[1])
    exact, exact_norm = x.detach().double().requires_grad_(), copy.deepcopy(norm).double()
    assert fused_norm.supports(norm, x)
    y, expected = norm.with_relu(x, pool), plain(exact_norm, exact, pool)
    grad = torch.randn_like(expected) * (expected.detach() > 1e-3)  # not where rounding decides what passes
    y.backward(grad.float())
    expected.backward(grad)
    pairs = [(y, expected), (x.grad, exact.grad), (norm.weight.grad, exact_norm.weight.grad)]
    pairs += [(norm.bias.grad, exact_norm.bias.grad)]
    pairs += [(norm.running_mean, exact_norm.running_mean), (norm.running_var, exact_norm.running_var)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=3e-5 if mean else 3e-6)
    assert norm.num_batches_tracked == 1
    assert y.stride(1) == 1, "the layout of the input is kept"


def test_first_of_equals_gets_the_gradient() -> None:
    x = torch.ones(1, 4, 2, 2).to(memory_format=torch.channels_last).contiguous(memory_format=torch.channels_last)
    x = torch.cat([x, -x]).requires_grad_()
    other = x.detach().clone().requires_grad_()
    for leaf, call in ((x, layer(4).with_relu), (other, lambda x, pool: plain(layer(4), x, pool))):
        call(leaf, True).sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_not_a_number_stays_so() -> None:
    for place in range(4):
        x = maps(2, 3, 2, 2, False)
        with torch.no_grad():
            x[0, 1, place // 2, place % 2] = torch.nan
        assert layer(3).with_relu(x, True)[:, 1].isnan().all()


def test_threads_change_no_number() -> None:
    x, threads, results = maps(64, 24, 10, 10, True), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            x.grad, norm = None, layer(24)
            y = norm.with_relu(x, True)
            y.square().sum().backward()
            results.append((y.detach(), x.grad, norm.weight.grad))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], result, strict=True))


def test_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, norm = maps(2, 4, 4, 4, True), layer(4)
    assert not fused_norm.supports(norm, x.detach().contiguous())
    assert not fused_norm.supports(norm, x.double())
    assert not fused_norm.supports(layer(4).eval(), x)
    monkeypatch.setenv("TORCHCAPS_KERNELS", "plain")
    assert not fused_norm.supports(norm, x)
    assert norm.with_relu(x, True).shape == (2, 4, 2, 2)
