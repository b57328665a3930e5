"""Convolution in the Fourier domain computes what `conv2d` computes, gradients included."""

import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import conv2d

from torchcaps.kernels import transforms, workspace
from torchcaps.kernels.phase_conv import phase_conv2d


def make(x: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in (x, weight, weight[:1])
    )


def assert_twins(x: Tensor, weight: Tensor, bias: Tensor, stride: int, tolerance: float, padding: int = 0) -> None:
    ours, plain = (twin(x, weight, bias, stride, padding) for twin in (phase_conv2d, conv2d))
    grad = torch.linspace(-1, 1, plain.numel(), dtype=x.dtype).view_as(plain)
    pairs = [(ours, plain)]
    pairs += zip(*(torch.autograd.grad(y, (x, weight, bias), grad) for y in (ours, plain)), strict=True)
    for mine, theirs in pairs:
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item())


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    image=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    kernel=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
)
def test_matches_for_any_shape(
    batch: int, channels: tuple, image: tuple, kernel: tuple, stride: int, padding: int
) -> None:
    assume(all(size + 2 * padding >= taps for size, taps in zip(image, kernel, strict=True)))
    made = make((batch, channels[0], *image), (channels[1], channels[0], *kernel))
    assert_twins(*made, stride, tolerance=1e-8, padding=padding)


def test_pixel_major_images_are_read_and_given_back_as_they_lie() -> None:
    x, weight, bias = make((3, 4, 8, 8), (5, 4, 3, 3))
    x = x.detach().permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1).requires_grad_()
    assert_twins(x, weight, bias, stride=1, tolerance=1e-10, padding=1)
    y = phase_conv2d(x, weight, bias, padding=1)
    assert transforms.is_pixel_major(y)
    assert transforms.is_pixel_major(torch.autograd.grad(y.sum(), x)[0])


@pytest.mark.parametrize("size", [20, 28])
def test_paper_sizes_in_float32(size: int) -> None:
    assert_twins(*make((2, 64, size, size), (32, 64, 9, 9), torch.float32), stride=2, tolerance=1e-4)


def test_gradcheck() -> None:
    x, weight, bias = make((2, 2, 7, 6), (3, 2, 3, 3))
    assert torch.autograd.gradcheck(lambda *inputs: phase_conv2d(*inputs, stride=2), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *inputs: phase_conv2d(*inputs, padding=1), (x, weight, bias))


@pytest.mark.parametrize("formats", list(itertools.product([torch.contiguous_format, torch.channels_last], repeat=2)))
def test_any_memory_format_and_chunks(formats: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "CHUNK_BYTES", 1)
    x, weight, bias = make((5, 3, 12, 12), (4, 3, 5, 5))
    x, weight = (
        t.detach().contiguous(memory_format=f).requires_grad_() for t, f in zip((x, weight), formats, strict=True)
    )
    assert_twins(x, weight, bias, stride=2, tolerance=1e-10)


def test_two_graphs_at_once_do_not_share_buffers() -> None:
    x, weight, bias = make((2, 3, 12, 12), (4, 3, 5, 5))
    first, second = phase_conv2d(x, weight, bias, 2), phase_conv2d(2 * x, weight, bias, 2)
    expected = torch.autograd.grad(conv2d(x, weight, bias, 2).square().sum(), weight)[0]
    second.sum().backward()
    phase_conv2d(3 * x, weight, bias, 2).sum().backward()
    torch.testing.assert_close(torch.autograd.grad(first.square().sum(), weight)[0], expected)


def test_retained_graph_can_be_used_twice_and_a_freed_one_says_so() -> None:
    x, weight, bias = make((2, 3, 12, 12), (4, 3, 5, 5))
    loss = phase_conv2d(x, weight, bias, 2).square().sum()
    (once,) = torch.autograd.grad(loss, weight, retain_graph=True)
    workspace.take(10**5, like=x).fill_(float("nan"))
    (again,) = torch.autograd.grad(loss, weight)
    assert torch.equal(once, again)
    with pytest.raises(RuntimeError, match="retain_graph"):
        torch.autograd.grad(loss, weight)


def test_transformed_weights_follow_the_weights() -> None:
    x, weight, bias = make((2, 3, 12, 12), (4, 3, 5, 5))
    with torch.no_grad():
        pruned = weight.data[:, 1].zero_
        for change in (lambda: None, lambda: weight.mul_(2), lambda: weight.data.mul_(2), pruned, lambda: None):
            change()
            torch.testing.assert_close(phase_conv2d(x, weight, bias, 2), conv2d(x, weight, bias, 2))
    with torch.inference_mode():
        torch.testing.assert_close(phase_conv2d(x, weight, bias, 2), conv2d(x, weight, bias, 2))


def test_training_goes_on_after_inference_mode() -> None:
    x, weight, bias = (tensor.float() for tensor in make((4, 8, 20, 20), (16, 8, 5, 5)))
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    for _ in range(2):
        phase_conv2d(x, weight, bias, 2).square().sum().backward()
        with torch.inference_mode():
            phase_conv2d(x, weight, bias, 2)
