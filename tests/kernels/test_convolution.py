"""Layers are computed by the twin that takes least, and every twin computes the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d

from torchcaps.kernels import columns, compiler, convolution, cost, native, phase_conv, remembered, tuning, winograd
from torchcaps.kernels.dft import correlation, factor_count
from torchcaps.nn import PrimaryCaps

needs_loops = pytest.mark.skipif(compiler.command() is None, reason="no C compiler here")
QUIET = cost.Machine(0.0221, 0.105, 1.37e-6)
"""A core of an EPYC processor."""


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "this_machine", lambda: QUIET)


@needs_loops
@given(
    batch=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    image=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    layout=st.sampled_from(["contiguous", "channels last", "pixel-major"]),
    weights_last=st.booleans(),
)
def test_columns_match_for_any_shape_and_layout(
    batch: int, channels: tuple, image: tuple, kernel: tuple, stride: int, padding: int, layout: str, weights_last: bool
) -> None:
    assume(all(size + 2 * padding >= taps for size, taps in zip(image, kernel, strict=True)))
    x, weight = torch.randn(batch, channels[0], *image), torch.randn(channels[1], channels[0], *kernel)
    if weights_last:
        weight = weight.contiguous(memory_format=torch.channels_last)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "pixel-major":
        x = x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    for bias in (None, torch.randn(channels[1])):
        ours, plain = (twin(x, weight, bias, stride, padding) for twin in (columns.columns_conv2d, conv2d))
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


@needs_loops
def test_columns_of_the_papers_primary_capsules_and_threads() -> None:
    x, weight, bias = torch.randn(1, 256, 20, 20), torch.randn(256, 256, 9, 9), torch.randn(256)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(columns.columns_conv2d(x, weight, bias, 2))
    torch.set_num_threads(before)
    expected = conv2d(x, weight, bias, 2)
    for found in results:
        assert (found - expected).norm() <= 1e-5 * expected.norm()


@needs_loops
def test_columns_are_for_inference_with_weights_as_they_lie() -> None:
    x, weight = torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3)
    assert not columns.supports(x, weight)
    with torch.no_grad():
        assert columns.supports(x, weight)
        assert not columns.supports(x.double(), weight.double())
        assert columns.supports(x, weight.contiguous(memory_format=torch.channels_last))
        assert not columns.supports(x, weight.transpose(0, 1))


def test_layer_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, features = PrimaryCaps(6, types=2, dim=4, kernel=5, stride=2), torch.randn(2, 6, 13, 13)
    monkeypatch.setenv(tuning.VARIABLE, "plain")
    plain = layer(features).poses
    assert convolution.chosen(layer.conv, features) == "plain"
    monkeypatch.setenv(tuning.VARIABLE, "fast")
    assert convolution.chosen(layer.conv, features) != "plain"
    torch.testing.assert_close(layer(features).poses, plain)
    assert convolution.chosen(nn.Conv2d(6, 8, 5, padding=1), features) != "plain"
    assert convolution.chosen(nn.Conv2d(6, 8, 5, padding=1, padding_mode="reflect"), features) == "plain"
    assert convolution.chosen(layer.conv, features[:0]) == "plain"
    layer.conv.register_forward_hook(lambda *_: None)
    assert convolution.chosen(layer.conv, features) == "plain"


def test_export_sees_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, "fast")
    layer, features = PrimaryCaps(6, types=2, dim=4, kernel=5, stride=2).eval(), torch.randn(2, 6, 13, 13)
    program = torch.export.export(layer, (features,))
    assert "conv2d" in str(program.graph)


@needs_loops
def test_fast_mode_takes_tiles_where_they_multiply_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, "fast")
    conv = nn.Conv2d(8, 8, 3, padding=1)
    found = [convolution.chosen(conv, torch.randn(2, 8, side, side)) for side in (8, 6, 10)]
    assert found == ["tiles", "tiles", "fourier"], "four tiles, and one; not where nine are needed"
    assert convolution.chosen(conv.double(), torch.randn(2, 8, 8, 8).double()) == "fourier"
    monkeypatch.setattr(native, "library", lambda name: None)
    assert convolution.chosen(conv.float(), torch.randn(2, 8, 8, 8)) == "fourier"


@needs_loops
def test_inference_is_timed_without_the_transforms_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made once for each twin, as for a layer's later calls, and are gone after the trial."""
    made: list[str] = []
    for module in (phase_conv, winograd):
        real = module._weight_factors

        def factors(*args: Any, name: str = module.__name__, real: Callable = real, **options: Any) -> torch.Tensor:
            made.append(name)
            return real(*args, **options)

        monkeypatch.setattr(module, "_weight_factors", factors)
    conv, x = nn.Conv2d(4, 4, 3, padding=1), torch.rand(2, 4, 8, 8)
    before = len(remembered._known)
    trial = convolution.Trial(conv, x, training=False)
    _, rounds = tuning.measure(["plain", "fourier", "tiles", "columns"], trial)
    assert rounds > 1
    assert made == [phase_conv.__name__, winograd.__name__]
    assert len(remembered._known) == before + 2
    del trial
    assert len(remembered._known) == before
    tuning.measure(["plain", "fourier", "tiles"], convolution.Trial(conv, x, training=True))
    assert conv.weight.grad is None
    assert x.grad is None


def test_what_older_runs_stored_is_still_understood(fresh: Path) -> None:
    conv, x = nn.Conv2d(4, 4, 9, 2), torch.randn(3, 4, 20, 20)
    convolution.chosen(conv, x)
    (name,) = tuning.choices()
    assert name == (
        "training conv2d 4 x 4 x 20 x 20 by 4 x 9 x 9, stride 2, padding 0, torch.float32 on cpu, "
        f"{torch.get_num_threads()} threads"
    )
    tuning.use({name: "fast"})
    assert convolution.chosen(conv, x) == "fourier"
    tuning.use({name: "plain"})
    assert convolution.chosen(conv, x) == "plain"
    assert conv.weight.grad is None


@needs_loops
@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize(
    ("shape", "training", "expected"),
    [
        ((128, 256, 20, 20, 256, 9, 9, 2, 0), True, "fourier"),
        ((128, 256, 28, 28, 256, 9, 9, 2, 0), True, "fourier"),
        ((128, 256, 20, 20, 256, 9, 9, 2, 0), False, "fourier"),
        ((128, 128, 6, 6, 128, 3, 3, 1, 1), True, "tiles"),
        ((128, 160, 6, 6, 160, 3, 3, 1, 1), True, "tiles"),
        ((128, 4, 14, 14, 32, 3, 3, 1, 1), True, "plain"),
        ((1, 4, 14, 14, 32, 3, 3, 1, 1), False, "plain"),
        ((1, 256, 16, 16, 512, 9, 9, 2, 0), False, "columns"),
    ],
)
def test_computed_cost_alone_decides_where_it_matters(
    shape: tuple, training: bool, expected: str, threads: int, quiet_machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    case, _ = convolution.described(shape, training)
    costs = {twin: cost.estimate(case, twin) for twin in convolution.possible(case)}
    assert min(costs, key=lambda twin: costs[twin]) == expected
    if threads <= 2:
        others = [value for twin, value in costs.items() if twin != expected]
        assert min(others) > tuning.CLOSE * costs[expected]


@given(st.tuples(st.integers(1, 14), st.integers(1, 14)), st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_factors_are_counted_right(outputs: tuple[int, int], taps: tuple[int, int]) -> None:
    made = correlation(outputs, taps, torch.float32, torch.device("cpu")).outputs.factors
    assert factor_count(outputs, taps) == made


def test_products_are_those_that_the_module_says() -> None:
    case, _ = convolution.described((1, 256, 20, 20, 256, 9, 9, 2, 0), training=False)
    assert cost.work("plain", case).products == 2916 * 256 * 256
    assert cost.work("fourier", case).products == 592 * 256 * 256
    small, _ = convolution.described((2, 8, 6, 6, 4, 3, 3, 1, 1), training=True)
    assert cost.work("tiles", small).products == winograd.cut((6, 6)).products * 2 * 8 * 4


def test_calibration_takes_no_time_and_is_kept(fresh: Path) -> None:
    found = cost.this_machine()
    assert all(0 < value < 10 for value in found)
    cost.this_machine.cache_clear()
    assert cost.this_machine() == found
