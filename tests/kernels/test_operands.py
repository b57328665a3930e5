"""What reaches the loops in C: shapes that the plain twin broadcasts or refuses, and operands of the wrong kind."""

import itertools
from typing import Any

import pytest
import torch
from support import as_installed
from torch import Tensor

from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.kernels import dispatch, em_operators, fused_em, fused_routing, native, operands
from torchcaps.kernels.columns import columns_conv2d
from torchcaps.kernels.winograd import winograd_conv2d
from torchcaps.routing import EM, Dynamic, Routing, VoteShape

BATCH, CHILDREN, PARENTS, DIM, POSE = 2, 3, 2, 4, 4
needs_loops = pytest.mark.skipif(not em_operators.available(), reason="no C compiler here")


def outcome(function: Any, *given: Any) -> RoutingOutput | None:
    """None where it is refused, in whatever words."""
    try:
        return function(*given)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None


@needs_loops
@pytest.mark.parametrize("kind", [EM, Dynamic])
def test_every_shape_is_computed_or_refused_as_by_the_plain_twin(kind: type[Routing]) -> None:
    torch.manual_seed(0)
    sizes = (BATCH, 1, CHILDREN, 5)
    activations = [shape for axes in (1, 2, 3) for shape in itertools.product(sizes, repeat=axes)]
    poses = list(itertools.product((BATCH, 1), (CHILDREN, 1, 5), (POSE, 1)))
    weights = [(CHILDREN, PARENTS, DIM, POSE), (1, PARENTS, DIM, POSE), (CHILDREN, PARENTS, DIM, 1)]
    computed = 0
    with as_installed(), torch.no_grad():
        for pose, active, weight in itertools.product(poses, activations if kind is EM else [(1,)], weights):
            routing = kind(VoteShape(CHILDREN, PARENTS, DIM))
            u, w = torch.randn(pose), torch.randn(weight)
            children = Capsules(u, torch.rand(active if kind is EM else pose[:2]))
            plain = outcome(lambda: routing(votes(u, w), children))  # noqa: B023
            ours = outcome(dispatch.route, routing, children, w)
            assert (plain is None) == (ours is None), (pose, active, weight)
            if plain is not None and ours is not None:
                computed += 1
                torch.testing.assert_close(ours.poses, plain.poses, rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(ours.activations, plain.activations, rtol=1e-4, atol=1e-4)
    assert computed > 2, "some of them fit"


@needs_loops
@pytest.mark.parametrize("shape", [(1, CHILDREN), (BATCH, 1), (1, 1)])
def test_activations_that_are_broadcast(shape: tuple[int, int]) -> None:
    """The kernel once read outside of the memory of these."""
    torch.manual_seed(0)
    routing, u, w = EM(VoteShape(CHILDREN, PARENTS, DIM)), torch.randn(BATCH, CHILDREN, POSE), torch.randn(3, 2, 4, 4)
    children = Capsules(u, torch.rand(shape))
    assert fused_em.supports(routing, children, w)
    with as_installed():
        ours, plain = fused_em.route(routing, children, w), routing(votes(u, w), children)
    torch.testing.assert_close(ours.poses, plain.poses, rtol=1e-4, atol=1e-5)


GOOD: dict[str, Any] = {
    "u": torch.zeros(2, 3, 4),
    "weight": torch.zeros(3, 2, 5, 4),
    "prior": torch.zeros(3, 2),
    "bias": torch.zeros(2, 5),
}


@needs_loops
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("how", ["shape", "fewer axes", "type", "empty"])
def test_the_operator_of_dynamic_routing_refuses_other_operands(name: str, how: str) -> None:
    given = dict(GOOD)
    wrong: dict[str, Tensor] = {
        "shape": torch.zeros(*(size + 1 for size in given[name].shape)),
        "fewer axes": given[name][0],
        "type": given[name].double(),
        "empty": given[name][:0],
    }
    fused_routing.dynamic_routing(*given.values(), 2, False, True, 1.0)
    given[name] = wrong[how]
    with pytest.raises(ValueError, match=r"must|needed"):
        fused_routing.dynamic_routing(*given.values(), 2, False, True, 1.0)


@pytest.mark.parametrize("convolve", [columns_conv2d, winograd_conv2d])
@pytest.mark.skipif(native.library("columns") is None, reason="no C compiler here")
def test_convolutions_refuse_what_conv2d_refuses(convolve: Any) -> None:
    x, weight, bias = torch.zeros(2, 3, 6, 6), torch.zeros(4, 3, 3, 3), torch.zeros(4)
    wrong = [
        (x, torch.zeros(4, 2, 3, 3), bias, 1, 0),
        (x, torch.zeros(4, 5, 3, 3), bias, 1, 0),
        (x[:, :, :2], weight, bias, 1, 0),
        (x.double(), weight, bias, 1, 0),
        (x, weight.half(), bias, 1, 0),
        (x[0], weight, bias, 1, 0),
        (x, weight, bias, 0, 0),
        (x, weight, bias, 1, -1),
    ]
    with as_installed(), torch.no_grad():
        for given in wrong:
            with pytest.raises(ValueError, match=r"must|fit"):
                convolve(*given)


def test_what_is_not_in_main_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="main memory"):
        operands.check("x", torch.zeros(2, device="meta"), (2,))
    with pytest.raises(ValueError, match="shape"):
        operands.check("x", torch.zeros(2), (3,))
    operands.check("x", None, (3,))
