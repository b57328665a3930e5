"""The loops in C against PyTorch, with and without a compiler."""

import shutil
from pathlib import Path

import pytest
import torch

from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, RoutingOutput, capsules_of
from torchcaps.kernels import fused_em, fused_routing, native
from torchcaps.routing import EM, Dynamic, VoteShape

Twins = tuple[RoutingOutput, RoutingOutput]
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


def _em(u: torch.Tensor, a: torch.Tensor, weight: torch.Tensor) -> tuple[Twins, list[torch.nn.Parameter]]:
    routing = EM(VoteShape(*weight.shape[:3]), iterations=3)
    plain = routing(votes(u, weight), Capsules(u, a))
    ours = fused_em.route(routing, Capsules(u, a), weight) if fused_em.runs(routing) else plain
    twins = ours, plain
    return twins, list(routing.parameters())


def _dynamic(u: torch.Tensor, a: torch.Tensor, weight: torch.Tensor) -> tuple[Twins, list[torch.nn.Parameter]]:
    routing = Dynamic(VoteShape(*weight.shape[:3]))
    u = u * a.unsqueeze(2)
    children = capsules_of(u)
    return (fused_routing.route(routing, children, weight), routing(votes(u, weight), children)), []


ROUTES = {"em": _em, "fused_routing": _dynamic}


def _routed(name: str, dim: int, threads: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs and gradients of the kernel, and of its plain twin."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    leaves = [torch.randn(7, 10, 4), torch.rand(7, 10), torch.randn(10, 3, dim, 4)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    try:
        twins, parameters = ROUTES[name](*leaves)
        upstream = [torch.randn_like(tensor) for tensor in twins[0][:2]]
        wanted = leaves + parameters
        ours, plain = ([*twin[:2], *torch.autograd.grad(twin[:2], wanted, upstream, True)] for twin in twins)
        return ours, plain
    finally:
        torch.set_num_threads(before)


def _assert_close(ours: list[torch.Tensor], plain: list[torch.Tensor]) -> None:
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())


@needs_compiler
@pytest.mark.parametrize("dim", [16, 5])
@pytest.mark.parametrize("name", ROUTES)
def test_compiled_loops_match_the_plain_twin(name: str, dim: int) -> None:
    assert native.library(name) is not None
    for threads in (1, 2):
        _assert_close(*_routed(name, dim, threads))


@needs_compiler
@pytest.mark.parametrize("name", ROUTES)
def test_threads_change_no_bit(name: str) -> None:
    (alone, _), (shared, _) = (_routed(name, 16, threads) for threads in (1, 2))
    assert all(map(torch.equal, alone, shared))


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
@pytest.mark.parametrize("name", ROUTES)
def test_without_a_compiler_it_works_too(
    name: str, compiler: str, unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert native.library(name) is None
    assert native.state(name).origin == "missing"
    _assert_close(*_routed(name, 16, threads=1))
    assert not list(unbuilt.rglob("*.so"))
