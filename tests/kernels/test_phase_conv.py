"""Convolution among frequencies computes what `conv2d` computes, gradients included."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv2d

from torchcaps.kernels import phase_conv, tuning, workspace
from torchcaps.kernels.phase_conv import phase_conv2d
from torchcaps.nn.primary import PrimaryCaps


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No choices made, none stored."""
    monkeypatch.setattr(tuning, "_choices", {})
    monkeypatch.setattr(tuning, "_path", lambda: tmp_path / "deep" / "kernels.json")
    monkeypatch.delenv(tuning.VARIABLE, raising=False)
    return tmp_path / "deep" / "kernels.json"


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
    assert phase_conv.is_pixel_major(y)
    assert phase_conv.is_pixel_major(torch.autograd.grad(y.sum(), x)[0])


@pytest.mark.parametrize("size", [20, 28])
def test_paper_sizes_in_float32(size: int) -> None:
    assert_twins(*make((2, 64, size, size), (32, 64, 9, 9), torch.float32), stride=2, tolerance=1e-4)


def test_gradcheck() -> None:
    x, weight, bias = make((2, 2, 7, 6), (3, 2, 3, 3))
    assert torch.autograd.gradcheck(lambda *inputs: phase_conv2d(*inputs, stride=2), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *inputs: phase_conv2d(*inputs, padding=1), (x, weight, bias))


@pytest.mark.parametrize("formats", list(itertools.product([torch.contiguous_format, torch.channels_last], repeat=2)))
def test_any_memory_format_and_chunks(formats: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_conv, "CHUNK_BYTES", 1)
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


def test_layer_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, features = PrimaryCaps(6, types=2, dim=4, kernel=5, stride=2), torch.randn(2, 6, 13, 13)
    monkeypatch.setenv(tuning.VARIABLE, "plain")
    plain = layer(features).poses
    assert not phase_conv.supports(layer.conv, features)
    monkeypatch.setenv(tuning.VARIABLE, "fast")
    assert phase_conv.supports(layer.conv, features)
    torch.testing.assert_close(layer(features).poses, plain)
    assert phase_conv.supports(nn.Conv2d(6, 8, 5, padding=1), features)
    assert not phase_conv.supports(nn.Conv2d(6, 8, 5, padding=1, padding_mode="reflect"), features)
    assert not phase_conv.supports(layer.conv, features[:0])
    layer.conv.register_forward_hook(lambda *_: None)
    assert not phase_conv.supports(layer.conv, features)


def test_export_sees_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, "fast")
    layer, features = PrimaryCaps(6, types=2, dim=4, kernel=5, stride=2).eval(), torch.randn(2, 6, 13, 13)
    program = torch.export.export(layer, (features,))
    assert "conv2d" in str(program.graph)


def test_choice_is_measured_once_and_stored(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    spin = torch.randn(300, 300)

    def slow() -> None:
        calls.append("slow")
        for _ in range(20):
            spin @ spin

    assert tuning.wins("a", plain=slow, fast=lambda: None)
    assert not tuning.wins("b", plain=lambda: None, fast=slow)
    measured = len(calls)
    assert measured
    (stored,) = json.loads(fresh.read_text()).values()
    assert sorted(stored.values()) == ["fast", "plain"]
    chosen = tuning.choices()
    assert list(chosen.values()) == ["fast", "plain"]
    monkeypatch.setattr(tuning, "_choices", {})
    assert tuning.wins("a", plain=slow, fast=lambda: None)
    assert len(calls) == measured
    tuning.use(dict.fromkeys(chosen, "plain"))
    assert not tuning.wins("a", plain=slow, fast=lambda: None)
    assert len(calls) == measured


def test_small_work_is_not_measured(fresh: Path) -> None:
    assert not phase_conv.supports(nn.Conv2d(4, 4, 9, 2), torch.randn(2, 4, 20, 20))
    assert tuning.choices() == {}


def test_large_work_is_measured_on_the_shape_itself(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_conv, "WORTH_MEASURING", 0)
    conv, x = nn.Conv2d(4, 4, 9, 2), torch.randn(3, 4, 20, 20)
    answer = phase_conv.supports(conv, x)
    (name,) = tuning.choices()
    assert name.startswith("training conv2d 4 x 4 x 20 x 20 by 4 x 9 x 9, stride 2, padding 0, torch.float32 on cpu")
    assert phase_conv.supports(conv, x) == answer
    assert conv.weight.grad is None


def test_unwritable_cache_only_means_measuring_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_path", lambda: Path("/dev/null/kernels.json"))
    tuning.wins("a", plain=lambda: None, fast=lambda: None)
