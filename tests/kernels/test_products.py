"""Many products at once are what `torch.bmm` computes, wherever the numbers lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchcaps.kernels import native, products

pytestmark = pytest.mark.skipif(native.library("products") is None, reason="needs the loops in C")


def matrices(count: int, rows: int, columns: int, transposed: bool) -> Tensor:
    shape = (count, columns, rows) if transposed else (count, rows, columns)
    made = torch.randn(shape)
    return made.mT if transposed else made


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 3),
    rows=st.integers(1, 20),
    columns=st.integers(1, 110),
    depth=st.sampled_from([1, 2, 7, 8, 9, 64, 256, 257, 530]),
    transposed=st.tuples(st.booleans(), st.booleans()),
)
def test_matches_for_any_shape_and_layout(count: int, rows: int, columns: int, depth: int, transposed: tuple) -> None:
    a, b = matrices(count, rows, depth, transposed[0]), matrices(count, depth, columns, transposed[1])
    ours = products.native_bmm(a, b, torch.full((count, rows, columns), float("nan")))
    assert torch.allclose(ours.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-5 * depth**0.5)


def test_threads_change_no_bit() -> None:
    a, b = matrices(5, 33, 300, False), matrices(5, 300, 70, True)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(products.native_bmm(a, b, torch.empty(5, 33, 70)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results)


def test_wrong_operands_are_refused() -> None:
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    for bad in (torch.ones(2, 3, 5), torch.ones(3, 4, 5), torch.ones(2, 4, 5, dtype=torch.float64)):
        with pytest.raises(ValueError, match="b must"):
            products.native_bmm(a, bad, torch.empty(2, 3, 5))
    for out in (torch.empty(2, 3, 4), torch.empty(2, 5, 3).mT):
        with pytest.raises(ValueError, match="out must"):
            products.native_bmm(a, b, out)


def test_other_precisions_and_processors_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "native_bmm", lambda *_: pytest.fail("used"))
    a, b = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)
    assert torch.equal(products.bmm(a, b, torch.empty(2, 3, 5, dtype=torch.float64)), a @ b)
    monkeypatch.setattr(products, "is_used", lambda: False)
    products.bmm(a.float(), b.float(), torch.empty(2, 3, 5))


@pytest.mark.parametrize(
    ("processor", "capability", "used"),
    [("AMD EPYC", "AVX512", True), ("AMD EPYC", "AVX2", False), ("Intel(R) Xeon(R)", "AVX512", False)],
)
def test_choice_depends_on_the_processor_alone(
    processor: str, capability: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "processor", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    products.is_used.cache_clear()
    try:
        assert products.is_used() is (used and torch.backends.mkl.is_available())
    finally:
        products.is_used.cache_clear()
