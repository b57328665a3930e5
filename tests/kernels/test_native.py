"""The loops in C against PyTorch, with and without a compiler."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, RoutingOutput, capsules_of
from torchcaps.kernels import fused_em, fused_routing, native
from torchcaps.routing import EM, Dynamic, VoteShape

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


def _em(u: Tensor, a: Tensor, weight: Tensor, ours: bool) -> tuple[RoutingOutput, list[nn.Parameter]]:
    routing = EM(VoteShape(*weight.shape[:3]), iterations=3).to(u.dtype)
    children = Capsules(u, a)
    kernel = ours and fused_em.runs(routing)
    output = fused_em.route(routing, children, weight) if kernel else routing(votes(u, weight), children)
    return output, list(routing.parameters())


def _dynamic(u: Tensor, a: Tensor, weight: Tensor, ours: bool) -> tuple[RoutingOutput, list[nn.Parameter]]:
    routing, children = Dynamic(VoteShape(*weight.shape[:3])), capsules_of(u * a.unsqueeze(2))
    output = (
        fused_routing.route(routing, children, weight) if ours else routing(votes(children.poses, weight), children)
    )
    return output, []


ROUTES = {"em": _em, "fused_routing": _dynamic}


def _routed(name: str, dim: int, threads: int, ours: bool = True, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Outputs and gradients of the kernel, or of its plain twin."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    leaves = [torch.randn(7, 10, 4), torch.rand(7, 10), torch.randn(10, 3, dim, 4)]
    upstream = [torch.randn(7, 3, dim), torch.randn(7, 3)]
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    try:
        output, parameters = ROUTES[name](*leaves, ours)
        gradients = torch.autograd.grad(output[:2], leaves + parameters, [x.to(dtype) for x in upstream], True)
        return [*output[:2], *gradients]
    finally:
        torch.set_num_threads(before)


def _assert_close(name: str, dim: int, threads: int) -> None:
    """To 1e-4 of the largest number, against float64: large votes, so that rounding grows through the iterations."""
    exact = _routed(name, dim, threads, ours=False, dtype=torch.float64)
    for one, right in zip(_routed(name, dim, threads), exact, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=0, atol=1e-4 * right.abs().max().item())


@needs_compiler
@pytest.mark.parametrize("dim", [16, 5])
@pytest.mark.parametrize("name", ROUTES)
def test_compiled_loops_match_the_plain_twin(name: str, dim: int) -> None:
    assert native.library(name) is not None
    for threads in (1, 2):
        _assert_close(name, dim, threads)


@needs_compiler
@pytest.mark.parametrize("name", ROUTES)
def test_threads_change_no_bit(name: str) -> None:
    alone, shared = (_routed(name, 16, threads) for threads in (1, 2))
    assert all(map(torch.equal, alone, shared))


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
@pytest.mark.parametrize("name", ROUTES)
def test_without_a_compiler_it_works_too(
    name: str, compiler: str, unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert native.library(name) is None
    assert native.state(name).origin == "missing"
    _assert_close(name, 16, threads=1)
    assert not list(unbuilt.rglob("*.so"))
