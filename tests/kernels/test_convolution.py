"""Layers are computed by the twin that takes least, and every twin computes the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d

from tests.kernels.conftest import new_process
from torchcaps.kernels import (
    columns,
    compiler,
    convolution,
    cost,
    evidence,
    native,
    phase_conv,
    remembered,
    tuning,
    winograd,
)
from torchcaps.kernels.dft import correlation, factor_count
from torchcaps.nn import PrimaryCaps

needs_loops = pytest.mark.skipif(compiler.command() is None, reason="no C compiler here")
MEASURED = Path(__file__).parents[2] / "results" / "bench" / "conv_costs.json"


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
@pytest.mark.parametrize("vectors", ["AVX512", "AVX2"])
@pytest.mark.parametrize(
    ("shape", "training", "expected"),
    [
        ((128, 256, 20, 20, 256, 9, 9, 2, 0), True, "fourier"),
        ((128, 256, 28, 28, 256, 9, 9, 2, 0), True, "fourier"),
        ((128, 256, 20, 20, 256, 9, 9, 2, 0), False, "fourier"),
        ((128, 128, 6, 6, 128, 3, 3, 1, 1), True, "tiles"),
        ((128, 160, 6, 6, 160, 3, 3, 1, 1), True, "tiles"),
        ((1, 4, 14, 14, 32, 3, 3, 1, 1), False, "plain"),
        ((1, 256, 16, 16, 512, 9, 9, 2, 0), False, "columns"),
    ],
)
def test_computed_cost_decides_where_it_matters(
    shape: tuple, training: bool, expected: str, threads: int, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: vectors)
    case, _ = convolution.described(shape, training)
    costs = {twin: cost.estimate(case, twin) for twin in convolution.possible(case)}
    assert min(costs, key=lambda twin: costs[twin]) == expected


@needs_loops
def test_computed_cost_chooses_what_measures_best_or_nearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the measurements that are kept: in training nothing else decides."""
    content = json.loads(MEASURED.read_text())
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: content["vectors"])
    longer: dict[str, list[float]] = {}
    for row in content["rows"]:
        kind, shape, *times = row.replace(": ", ", ").split(", ")
        case, _ = convolution.described(tuple(map(int, shape.split())), kind.startswith("training"))
        measured = {twin: float(ms) for twin, ms in (time.split() for time in times)}
        chosen = min(measured, key=lambda twin: cost.estimate(case, twin))
        longer.setdefault(kind, []).append(measured[chosen] / min(measured.values()))
    means = {kind: sum(found) / len(found) for kind, found in longer.items()}
    assert max(longer["training of a model"]) < tuning.CLOSE
    assert means["training of a model"] < 1.02
    assert all(mean < 1.06 for mean in means.values()), means


@given(st.tuples(st.integers(1, 14), st.integers(1, 14)), st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_factors_are_counted_right(outputs: tuple[int, int], taps: tuple[int, int]) -> None:
    made = correlation(outputs, taps, torch.float32, torch.device("cpu")).outputs.factors
    assert factor_count(outputs, taps) == made


def test_products_are_those_that_the_module_says() -> None:
    case, _ = convolution.described((1, 256, 20, 20, 256, 9, 9, 2, 0), training=False)
    assert cost.work("plain", case).products == 2916 * 256 * 256
    assert cost.work("fourier", case).products == 592 * 256 * 256
    for outputs in (8, 5):
        small, _ = convolution.described((2, 8, 6, 6, outputs, 3, 3, 1, 1), training=True)
        assert cost.work("tiles", small).products == winograd.cut((6, 6)).products * 2 * 8 * 8, "eight at a time"


def test_fourier_costs_more_without_its_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    case, _ = convolution.described((16, 64, 24, 24, 96, 9, 9, 2, 0), training=True)
    monkeypatch.setattr(native, "library", lambda name: object())
    aided = cost.estimate(case, "fourier")
    monkeypatch.setattr(native, "library", lambda name: None)
    assert cost.estimate(case, "fourier") == pytest.approx(cost.UNAIDED * aided)


@pytest.mark.parametrize("images", [1, 128])
def test_nothing_is_measured_in_training_nor_for_one_image(
    images: int, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training it would be a matter of luck which bytes the weights end in; for one image, somebody waits."""
    monkeypatch.setattr(tuning, "CLOSE", 1e9)
    monkeypatch.setattr(convolution, "QUICK", 0)
    monkeypatch.setattr(tuning, "measure", lambda *_: pytest.fail("measured"))
    conv, x = nn.Conv2d(4, 4, 3), torch.rand(images, 4, 8, 8)
    with torch.set_grad_enabled(images > 1):
        convolution.chosen(conv, x)
    (name,) = tuning.choices()
    assert json.loads(fresh.read_text())["machines"][evidence.machine()]["choices"][name]["by"] == "computed cost"


@needs_loops
def test_choice_heals_when_a_twin_comes_back(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen while a library could not be loaded is chosen anew, in training and in inference."""
    conv, x = nn.Conv2d(64, 128, 3, padding=1), torch.rand(16, 64, 6, 6)

    def choose() -> list[str]:
        new_process()
        with torch.no_grad():
            inference = convolution.chosen(conv, x)
        return [inference, convolution.chosen(conv, x)]

    with monkeypatch.context() as without:
        real = native.library
        without.setattr(native, "library", lambda name: None if name == "tiles" else real(name))
        assert "tiles" not in choose()
    assert choose() == ["tiles", "tiles"]
    assert choose() == ["tiles", "tiles"]
