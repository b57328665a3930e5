"""The loops in C against PyTorch, with and without a compiler."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchcaps.functional import votes
from torchcaps.kernels import fused_em, native
from torchcaps.routing import EM, VoteShape
from torchcaps.types import Capsules

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@pytest.fixture
def forgetful() -> Iterator[None]:
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def _routed(dim: int, threads: int) -> list[torch.Tensor]:
    """Outputs and gradients of the kernel, then of its plain twin."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    shape = VoteShape(10, 3, dim)
    routing = EM(shape, iterations=3)
    leaves = [torch.randn(7, 10, 4), torch.rand(7, 10), torch.randn(10, 3, dim, 4)]
    leaves = [leaf.requires_grad_() for leaf in leaves] + list(routing.parameters())
    u, a, weight = leaves[:3]
    try:
        twins = fused_em.route(routing, Capsules(u, a), weight), routing(votes(u, weight), a)
        upstream = [torch.randn_like(tensor) for tensor in twins[0][:2]]
        return [t for twin in twins for t in (*twin[:2], *torch.autograd.grad(twin[:2], leaves, upstream))]
    finally:
        torch.set_num_threads(before)


@needs_compiler
@pytest.mark.parametrize("dim", [16, 5])
def test_compiled_loops_match_the_plain_twin(dim: int) -> None:
    assert native.library("em_votes") is not None
    one, two = _routed(dim, threads=1), _routed(dim, threads=2)
    half = len(one) // 2
    for ours, plain in zip(one[:half], one[half:], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 * plain.abs().max().item())
    for alone, shared in zip(one[:half], two[:half], strict=True):
        assert torch.equal(alone, shared), "threads change no bit"


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_it_works_too(
    compiler: str, forgetful: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(native, "cache_folder", lambda: tmp_path)
    assert native.library("em_votes") is None
    found = _routed(16, threads=1)
    half = len(found) // 2
    for ours, plain in zip(found[:half], found[half:], strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5 * plain.abs().max().item())
    assert not list(tmp_path.rglob("*.so"))


@needs_compiler
def test_compiled_once(forgetful: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "cache_folder", lambda: tmp_path)
    assert native.library("em_votes") is not None
    (built,) = tmp_path.rglob("*.so")
    before = built.stat().st_mtime_ns
    native.library.cache_clear()
    assert native.library("em_votes") is not None
    assert built.stat().st_mtime_ns == before
