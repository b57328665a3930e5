"""The loops in C compiled without OpenMP, as where PyTorch brings another one: the same numbers as the plain twins.

Also with two threads of PyTorch's: what would be shared out among them is then computed by one.
"""

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, capsules_of
from torchcaps.kernels import (
    columns,
    compiler,
    fused_em,
    fused_norm,
    fused_routing,
    native,
    phase_conv,
    products,
    remembered,
    transforms,
    winograd,
)
from torchcaps.nn.norm import BatchNorm
from torchcaps.routing import EM, Dynamic, VoteShape

pytestmark = pytest.mark.skipif(compiler.command() is None, reason="no C compiler here")
BOUND = (columns._loops, winograd._loops, products._loop, fused_norm._loops, transforms._loops)
"""What keeps the functions that it has found."""


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all libraries, compiled without OpenMP for this processor."""
    folder, command, level = tmp_path_factory.mktemp("serial"), compiler.command(), native._usable_levels()[0]
    assert command is not None

    def build(name: str) -> None:
        compiler.build(command, name, level, False, folder / f"{compiler.stem(name, level, False)}.so")

    with ThreadPoolExecutor() as pool:
        list(pool.map(build, compiler.sources()))
    return folder


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def without_openmp(serial: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    monkeypatch.setattr(compiler, "PACKAGED", serial)
    monkeypatch.setattr(native, "_share_openmp", lambda: False)
    monkeypatch.setattr(native, "_states", {})
    monkeypatch.setattr(native, "library", lru_cache(native.library.__wrapped__))
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    _forget()
    yield
    torch.set_num_threads(before)
    _forget()


def _forget() -> None:
    for found in BOUND:
        found.cache_clear()


def pairs_of(compute: Callable[..., Tensor | tuple[Tensor, ...]], leaves: list[Tensor]) -> list[Tensor]:
    """Results, and gradients of all leaves."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    found = compute(*leaves)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    upstream = [torch.linspace(-1, 1, output.numel()).view(output.shape).to(output.dtype) for output in outputs]
    return [*(output.detach() for output in outputs), *torch.autograd.grad(outputs, leaves, upstream)]


def assert_same(ours: Callable[..., Any], plain: Callable[..., Any], *leaves: Tensor, bound: float = 1e-5) -> None:
    """The plain twin in double precision, to a relative error of `bound`."""
    exact = pairs_of(plain, [leaf.double() for leaf in leaves])
    for found, right in zip(pairs_of(ours, list(leaves)), exact, strict=True):
        assert (found.double() - right).norm() <= bound * right.norm()


def loaded(name: str) -> None:
    state = native.state(name)
    assert (state.origin, state.openmp) == ("package", False), state
    assert b"GOMP" not in Path(state.path).read_bytes()


@pytest.mark.usefixtures("without_openmp")
class TestWithoutOpenMP:
    def test_dynamic_routing(self) -> None:
        loaded("fused_routing")
        routing = Dynamic(VoteShape(10, 3, 5))

        def ours(poses: Tensor, weight: Tensor) -> Tensor:
            children = capsules_of(poses)
            assert fused_routing.supports(routing, children, weight)
            return fused_routing.route(routing, children, weight).poses

        def plain(poses: Tensor, weight: Tensor) -> Tensor:
            return routing(votes(poses, weight), capsules_of(poses)).poses

        assert_same(ours, plain, torch.randn(7, 10, 4), torch.randn(10, 3, 5, 4), bound=1e-4)

    def test_em(self) -> None:
        loaded("em")
        routing = EM(VoteShape(10, 3, 5), iterations=3)
        exact = copy.deepcopy(routing).double()

        def ours(poses: Tensor, activations: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            children = Capsules(poses, activations)
            assert fused_em.supports(routing, children, weight)
            output = fused_em.route(routing, children, weight)
            return output.poses, output.activations

        def plain(poses: Tensor, activations: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            output = exact(votes(poses, weight), Capsules(poses, activations))
            return output.poses, output.activations

        leaves = torch.randn(7, 10, 4), torch.rand(7, 10), torch.randn(10, 3, 5, 4)
        assert_same(ours, plain, *leaves, bound=1e-4)

    @pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (4, 2, 0)])
    def test_tiles(self, kernel: int, stride: int, padding: int) -> None:
        loaded("tiles")
        leaves = torch.randn(5, 17, 13, 9), torch.randn(9, 17, kernel, kernel)
        self._convolve(winograd.winograd_conv2d, leaves, stride, padding)

    @pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (9, 2, 0)])
    def test_dft(self, kernel: int, stride: int, padding: int) -> None:
        loaded("dft")
        leaves = torch.randn(5, 17, 13, 12), torch.randn(9, 17, kernel, kernel)
        assert transforms._served(leaves[0])
        self._convolve(phase_conv.phase_conv2d, leaves, stride, padding)

    @staticmethod
    def _convolve(twin: Callable[..., Tensor], leaves: tuple[Tensor, Tensor], stride: int, padding: int) -> None:
        assert_same(
            lambda x, weight: twin(x, weight, None, stride, padding),
            lambda x, weight: conv2d(x, weight, None, stride, padding),
            *leaves,
        )

    @torch.no_grad()
    def test_columns(self) -> None:
        loaded("columns")
        x, weight, bias = torch.randn(2, 5, 13, 12), torch.randn(9, 5, 4, 3), torch.randn(9)
        found = columns.columns_conv2d(x, weight, bias, 2, 1)
        torch.testing.assert_close(found, conv2d(x, weight, bias, 2, 1), rtol=1e-4, atol=1e-5)

    def test_products(self) -> None:
        loaded("products")
        a, b = torch.randn(3, 33, 261), torch.randn(3, 70, 261).mT
        found = products.native_bmm(a, b, torch.empty(3, 33, 70))
        torch.testing.assert_close(found, torch.bmm(a, b), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("pool", [False, True])
    def test_norm(self, pool: bool) -> None:
        loaded("norm")
        norm, exact = BatchNorm(5), BatchNorm(5).double()

        def ours(x: Tensor) -> Tensor:
            x = x.contiguous(memory_format=torch.channels_last)
            assert fused_norm.supports(norm, x)
            return norm.with_relu(x, pool)

        assert_same(ours, lambda x: relu(exact(max_pool2d(x, 2) if pool else x)), torch.randn(6, 5, 7, 8))
        torch.testing.assert_close(norm.running_var.double(), exact.running_var)  # pyright: ignore

    def test_checksum(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same as with OpenMP: what is remembered must not depend on it."""
        loaded("checksum")
        values = torch.randn(70, 30, 5, 5)
        found = remembered.checksum(values)
        monkeypatch.undo()
        if native.library("checksum") is not None:
            assert torch.equal(remembered.checksum(values), found)


def test_every_source_is_compared() -> None:
    tested = {"fused_routing", "em", "tiles", "dft", "columns", "products", "norm", "checksum"}
    assert tested == set(compiler.sources())
