"""Routing without stored votes computes what `routing(votes(...))` computes, gradients included."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, RoutingOutput, capsules_of
from torchcaps.kernels import fused_routing
from torchcaps.nn.dense import DenseCaps
from torchcaps.routing import Dynamic, VoteShape
from torchcaps.training.forecast import peak_bytes

OPTIONS = [
    {"gradient": gradient, "learn_priors": priors, "leaky": leaky, "bias": bias}
    for gradient, priors, leaky, bias in itertools.product(("full", "last"), *[(False, True)] * 3)
]


def make(shape: tuple[int, int, int, int, int], dtype: torch.dtype, seed: int = 0, **options: object):
    batch, children, child_dim, parents, dim = shape
    generator = torch.Generator().manual_seed(seed)
    routing = Dynamic(VoteShape(children, parents, dim), **options).to(dtype)
    for parameter in routing.parameters():
        nn.init.normal_(parameter, generator=generator)
    poses = torch.randn(batch, children, child_dim, dtype=dtype, generator=generator)
    weight = torch.randn(children, parents, dim, child_dim, dtype=dtype, generator=generator) * 0.5
    return routing, poses.requires_grad_(), weight.requires_grad_()


def answer(output: RoutingOutput, *inputs: Tensor) -> list[Tensor]:
    """Poses, lengths and the gradients of something that depends on both."""
    target = torch.linspace(-1, 1, output.poses.numel(), dtype=output.poses.dtype).view_as(output.poses)
    loss = (output.poses * target).sum() + output.activations.square().sum()
    return [output.poses, output.activations, *torch.autograd.grad(loss, inputs)]


def assert_twins(routing: Dynamic, poses: Tensor, weight: Tensor, tolerance: float) -> None:
    inputs = (poses, weight, *routing.parameters())
    ours = answer(fused_routing.route(routing, capsules_of(poses), weight), *inputs)
    plain = answer(routing(votes(poses, weight), capsules_of(poses)), *inputs)
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_matches_the_plain_twin(options: dict, iterations: int) -> None:
    assert_twins(*make((5, 21, 4, 3, 6), torch.float64, iterations=iterations, **options), tolerance=1e-10)
    # Children beyond the loops' tiles of 64, and some left over.
    assert_twins(*make((5, 149, 4, 3, 6), torch.float32, iterations=iterations, **options), tolerance=1e-4)


def test_certain_and_broken_logits_in_float32() -> None:
    """Couplings of 0 and 1 are exact in the loops too, and what is not a number stays so."""
    routing, poses, weight = make((3, 70, 4, 5, 6), torch.float32)
    assert_twins(routing, (poses * 30).detach().requires_grad_(), weight, tolerance=1e-4)
    broken = poses.detach().clone()
    broken[1, 2, 3] = torch.nan
    output = fused_routing.route(routing, capsules_of(broken), weight)
    assert output.poses[1].isnan().all()
    assert output.poses[[0, 2]].isfinite().all()


def test_more_parents_than_the_loops_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_routing, "MOST_PARENTS", 4)
    assert_twins(*make((3, 70, 4, 5, 6), torch.float32), tolerance=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, 9)] * 5),
    iterations=st.integers(1, 4),
    options=st.sampled_from(OPTIONS),
    seed=st.integers(0, 99),
)
def test_matches_for_any_shape(shape: tuple, iterations: int, options: dict, seed: int) -> None:
    assert_twins(*make(shape, torch.float64, seed, iterations=iterations, **options), tolerance=1e-8)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_blocks_do_not_change_the_answer(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fused_routing.BLOCK_BYTES, "cpu", 1)
    monkeypatch.setattr(fused_routing, "BATCH_BLOCK", 2)
    assert_twins(*make((5, 21, 4, 3, 6), torch.float64, **options), tolerance=1e-10)


def test_gradcheck() -> None:
    routing, poses, weight = make((2, 5, 3, 4, 3), torch.float64, learn_priors=True, leaky=True, bias=True)
    inputs = (poses, weight, *routing.parameters())
    assert torch.autograd.gradcheck(lambda u, w, *_: fused_routing.route(routing, capsules_of(u), w).poses, inputs)


def test_paper_size_in_float32() -> None:
    routing, poses, weight = make((4, 1152, 8, 10, 16), torch.float32)
    with torch.no_grad():
        weight.mul_(0.2)
    assert_twins(routing, poses, weight, tolerance=1e-4)


def test_inputs_in_any_layout() -> None:
    routing, poses, weight = make((3, 10, 4, 3, 6), torch.float64)
    strided = poses.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    turned = weight.detach().permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0).requires_grad_()
    assert not strided.is_contiguous()
    assert_twins(routing, strided, turned, tolerance=1e-10)


def test_zero_poses_have_finite_gradients() -> None:
    routing, poses, weight = make((2, 6, 4, 3, 5), torch.float32)
    with torch.no_grad():
        poses.zero_()
    for value in answer(fused_routing.route(routing, capsules_of(poses), weight), poses, weight):
        assert value.isfinite().all()


def test_layer_uses_it_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = DenseCaps(12, 4, 3, 5)
    u = torch.randn(2, 12, 4)
    capsules = Capsules(u, u.norm(dim=-1))
    assert fused_routing.supports(layer.routing, u, layer.weight)
    fused = layer(capsules).poses
    assert fused.grad_fn is not None
    assert fused.grad_fn.name() == "_RouteBackward"
    traced = layer(capsules, trace=True)
    assert traced.trace is not None
    torch.testing.assert_close(fused, traced.poses)
    assert layer(Capsules(u[:0], u[:0, :, 0])).poses.shape == (0, 3, 5)
    assert not fused_routing.supports(layer.routing, u.bfloat16(), layer.weight)
    monkeypatch.setenv("TORCHCAPS_KERNELS", "plain")
    assert not fused_routing.supports(layer.routing, u, layer.weight)
    monkeypatch.setenv("TORCHCAPS_KERNELS", "warp")
    with pytest.raises(UserError, match="plain, fast or auto"):
        layer(capsules)


def test_subclasses_are_left_alone() -> None:
    class Louder(Dynamic):
        pass

    u, layer = torch.randn(2, 12, 4), DenseCaps(12, 4, 3, 5, Louder(VoteShape(12, 3, 5)))
    assert not fused_routing.supports(layer.routing, u, layer.weight)


def test_export_sees_the_plain_path() -> None:
    class Poses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = DenseCaps(12, 4, 3, 5)

        def forward(self, u: Tensor) -> Tensor:
            return self.layer(Capsules(u, u.sum(-1))).poses

    module, u = Poses().eval(), torch.randn(2, 12, 4)
    program = torch.export.export(module, (u,))
    assert "_Route" not in str(program.graph)
    torch.testing.assert_close(program.module()(u), module(u))


def test_memory_is_flat_in_iterations_and_far_below_the_votes() -> None:
    def step(output: RoutingOutput) -> None:
        output.poses.sum().backward()

    peaks = []
    for iterations in (2, 6):
        routing, poses, weight = make((128, 800, 8, 10, 16), torch.float32, iterations=iterations)
        peaks.append(peak_bytes(lambda: step(fused_routing.route(routing, capsules_of(poses), weight))))  # noqa: B023
    assert peaks[1] < 1.1 * peaks[0]
    assert peak_bytes(lambda: step(routing(votes(poses, weight), capsules_of(poses)))) > 4 * peaks[1]
