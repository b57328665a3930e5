"""Routing in C computes what `routing(votes(...))` computes, gradients included."""

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, RoutingOutput, capsules_of
from torchcaps.kernels import fused_routing
from torchcaps.nn import DenseCaps
from torchcaps.routing import Dynamic, VoteShape
from torchcaps.training.forecast import peak_bytes

OPTIONS = [
    {"gradient": gradient, "learn_priors": priors, "leaky": leaky, "bias": bias}
    for gradient, priors, leaky, bias in itertools.product(("full", "last"), *[(False, True)] * 3)
]
OPTIONS += [{"sharpness": 7.0}, {"sharpness": 0.3, "learn_priors": True, "leaky": True, "bias": True}]


def route(routing: Dynamic, poses: Tensor, weight: Tensor) -> RoutingOutput:
    return fused_routing.route(routing, capsules_of(poses), weight)


def supports(routing: Dynamic, poses: Tensor, weight: Tensor) -> bool:
    return fused_routing.supports(routing, capsules_of(poses), weight)


def plain_route(routing: Dynamic, poses: Tensor, weight: Tensor) -> RoutingOutput:
    return routing(votes(poses, weight), capsules_of(poses))


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
    ours = answer(route(routing, poses, weight), *inputs)
    plain = answer(plain_route(routing, poses, weight), *inputs)
    for mine, theirs in zip(ours, plain, strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= tolerance * max(1.0, theirs.abs().max().item())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_matches_the_plain_twin(options: dict, iterations: int) -> None:
    # Four rows of 32 children make a chunk: here is one chunk, another of a single row, and some children left over.
    assert_twins(*make((5, 149, 4, 3, 6), torch.float32, iterations=iterations, **options), tolerance=1e-4)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_float64_is_left_to_the_plain_twin(options: dict) -> None:
    routing, poses, weight = make((3, 21, 4, 3, 6), torch.float64, **options)
    assert not supports(routing, poses, weight)
    assert_twins(routing, poses, weight, tolerance=1e-8)


def test_certain_and_broken_logits_in_float32() -> None:
    """Couplings of 0 and 1 are exact in the loops too, and what is not a number stays so."""
    routing, poses, weight = make((3, 70, 4, 5, 6), torch.float32)
    assert_twins(routing, (poses * 30).detach().requires_grad_(), weight, tolerance=1e-4)
    broken = poses.detach().clone()
    broken[1, 2, 3] = torch.nan
    output = route(routing, broken, weight)
    assert output.poses[1].isnan().all()
    assert output.poses[[0, 2]].isfinite().all()


def test_exponential_is_accurate() -> None:
    """Child i votes along dimension i only, so that s holds its couplings. Logits reach to -86, near float32's end."""
    children = 500
    prior = torch.stack([torch.zeros(children), torch.linspace(0, -86, children)], 1)
    weight = torch.eye(children)[:, None, :, None].expand(-1, 2, -1, -1)
    _, sums = fused_routing.dynamic_routing(torch.ones(1, children, 1), weight, prior, None, 1, False, True, 1.0)
    torch.testing.assert_close(sums[0, 0].T.double(), prior.double().softmax(1), rtol=3e-7, atol=0)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(1, most) for most in (19, 140, 10, 7, 18)]),
    iterations=st.integers(1, 4),
    options=st.sampled_from(OPTIONS),
    seed=st.integers(0, 99),
)
def test_matches_for_any_shape(shape: tuple, iterations: int, options: dict, seed: int) -> None:
    routing, poses, weight = make(shape, torch.float32, seed, iterations=iterations, **options)
    with torch.no_grad():
        weight.mul_((9 / shape[1]) ** 0.5)
    assert_twins(routing, poses, weight, tolerance=1e-4)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_groups_and_spans_do_not_change_the_answer(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make((31, 70, 8, 3, 6), torch.float32, **options)
    whole = answer(route(*case), *case[1:])
    monkeypatch.setattr(fused_routing, "GROUP_IMAGES", 2)
    monkeypatch.setattr(fused_routing, "SPAN_BYTES", 0)  # as much as the weights take: at most 12 images
    parted = answer(route(*case), *case[1:])
    assert all(map(torch.equal, whole[:3], parted[:3]))
    torch.testing.assert_close(whole[3], parted[3], rtol=1e-5, atol=1e-5)
    assert_twins(*case, tolerance=1e-4)


@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_votes_that_are_made_again_change_no_bit(
    options: dict, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make((31, 70, 8, 3, 6), torch.float32, **{**options, "iterations": iterations})
    kept = answer(route(*case), *case[1:])
    monkeypatch.setattr(fused_routing, "KEPT_BYTES", 0)
    monkeypatch.setattr(fused_routing, "AGAIN_IMAGES", 13)
    assert not _made_again(case), "few images: their votes are kept all the same"
    monkeypatch.setattr(fused_routing, "GROUP_BYTES", 0)
    assert _made_again(case)
    assert all(map(torch.equal, kept, answer(route(*case), *case[1:])))
    assert_twins(*case, tolerance=1e-4)


def _made_again(case: tuple[Dynamic, torch.Tensor, torch.Tensor]) -> bool:
    routing, poses, weight = case
    return bool(fused_routing._sizes(poses, weight, None, routing.iterations, False, True, 1.0).again)


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_threads_change_no_bit(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the threads share one image."""
    monkeypatch.setattr(fused_routing, "SMALL", 0)
    case = make((batch, 300, 8, 4, 16), torch.float32, learn_priors=True, bias=True)
    before, answers = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            answers.append(answer(route(*case), *case[1:], *case[0].parameters()))
    finally:
        torch.set_num_threads(before)
    for other in answers[1:]:
        assert all(map(torch.equal, answers[0], other))


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[-1]], ids=str)
def test_operators_are_registered_as_torch_wants_them(options: dict) -> None:
    routing, poses, weight = make((3, 37, 4, 3, 6), torch.float32, **options)
    given = (routing.leaky, routing.gradient == "full", routing.sharpness)
    inputs = (poses, weight, routing.log_priors, routing.bias, 3, *given)
    torch.library.opcheck(fused_routing.dynamic_routing, inputs)
    with torch.no_grad():
        v, sums = fused_routing.dynamic_routing(*inputs)
    inputs = (v, poses.detach(), weight.detach(), routing.log_priors, sums, *given)
    torch.library.opcheck(fused_routing.dynamic_routing_backward, inputs, test_utils=("test_schema", "test_faketensor"))


COMPILED = """
import torch
from torchcaps.nn import DenseCaps

layer, u = DenseCaps(40, 8, 3, 16, learn_priors=True), torch.randn(2, 40, 8)
graphs = []
compiled = torch.compile(layer, backend=lambda graph, _: graphs.append(str(graph.graph)) or graph, fullgraph=True)
torch.testing.assert_close(compiled(u).poses, layer(u).poses)
assert "torchcaps.dynamic_routing" in graphs[0]
"""


def test_compiles_without_a_graph_break() -> None:
    """In a process of its own: the type checks of the tests cannot be compiled."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


def test_paper_size_in_float32() -> None:
    routing, poses, weight = make((4, 1152, 8, 10, 16), torch.float32)
    with torch.no_grad():
        weight.mul_(0.2)
    assert_twins(routing, poses, weight, tolerance=1e-4)


def test_inputs_in_any_layout() -> None:
    routing, poses, weight = make((3, 10, 4, 3, 6), torch.float32)
    strided = poses.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    turned = weight.detach().permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0).requires_grad_()
    assert not strided.is_contiguous()
    assert_twins(routing, strided, turned, tolerance=1e-4)


def test_zero_poses_have_finite_gradients() -> None:
    routing, poses, weight = make((2, 6, 4, 3, 5), torch.float32)
    with torch.no_grad():
        poses.zero_()
    for value in answer(route(routing, poses, weight), poses, weight):
        assert value.isfinite().all()


def test_layer_uses_it_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = DenseCaps(12, 4, 3, 5)
    u = torch.randn(2, 12, 4)
    capsules = Capsules(u, u.norm(dim=-1))
    assert supports(layer.routing, u, layer.weight)
    fused = layer(capsules).poses
    assert "dynamic_routing" in str(fused.grad_fn)
    traced = layer(capsules, trace=True)
    assert traced.trace is not None
    torch.testing.assert_close(fused, traced.poses)
    assert layer(Capsules(u[:0], u[:0, :, 0])).poses.shape == (0, 3, 5)
    assert not supports(layer.routing, u.bfloat16(), layer.weight)
    monkeypatch.setenv("TORCHCAPS_KERNELS", "plain")
    assert not supports(layer.routing, u, layer.weight)
    monkeypatch.setenv("TORCHCAPS_KERNELS", "warp")
    with pytest.raises(UserError, match="plain, fast or auto"):
        layer(capsules)


TEAMS = """
import torch
from torchcaps.core.types import Capsules
from torchcaps.kernels import fused_routing
from torchcaps.nn.dense import DenseCaps

fused_routing.SMALL = 0
torch.manual_seed(0)
u, layer = torch.randn(1, 1152, 8), DenseCaps(1152, 8, 10, 16)
found = []
for threads in (1, 2):
    torch.set_num_threads(threads)
    given = u.clone().requires_grad_()
    poses = layer(Capsules(given, given.sum(-1))).poses
    found.append((poses, *torch.autograd.grad(poses.square().sum(), (given, layer.weight))))
for one, two in zip(*found):
    torch.testing.assert_close(one, two)
"""


@pytest.mark.parametrize("limit", [{}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}])
def test_one_image_is_right_if_there_are_fewer_threads_than_were_asked_for(limit: dict[str, str]) -> None:
    environment = {**os.environ, "TORCHCAPS_KERNELS": "fast", **limit}
    subprocess.run([sys.executable, "-c", TEAMS], env=environment, check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads how Linux numbers threads")
def test_one_image_creates_no_threads() -> None:
    """A parallel region inside of another one would, at every call."""

    def number_of_a_new_thread() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(threading.get_native_id()))
        thread.start()
        thread.join()
        return found[0]

    routing, poses, weight = make((1, 1152, 8, 10, 16), torch.float32)
    calls, largest = 1000, int(Path("/proc/sys/kernel/pid_max").read_text())
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        route(routing, poses, weight)
        before = number_of_a_new_thread()
        for _ in range(calls):
            route(routing, poses.detach(), weight.detach())
        assert (number_of_a_new_thread() - before) % largest < calls / 2
    finally:
        torch.set_num_threads(threads)


def test_subclasses_are_left_alone() -> None:
    class Louder(Dynamic):
        pass

    u, layer = torch.randn(2, 12, 4), DenseCaps(12, 4, 3, 5, Louder(VoteShape(12, 3, 5)))
    assert not supports(layer.routing, u, layer.weight)


def test_export_sees_the_plain_path() -> None:
    class Poses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = DenseCaps(12, 4, 3, 5)

        def forward(self, u: Tensor) -> Tensor:
            return self.layer(Capsules(u, u.sum(-1))).poses

    module, u = Poses().eval(), torch.randn(2, 12, 4)
    program = torch.export.export(module, (u,))
    assert "dynamic_routing" not in str(program.graph)
    torch.testing.assert_close(program.module()(u), module(u))


def test_memory_is_flat_in_iterations_and_far_below_the_votes() -> None:
    def step(output: RoutingOutput) -> None:
        output.poses.sum().backward()

    peaks = []
    for iterations in (2, 6):
        routing, poses, weight = make((128, 800, 8, 10, 16), torch.float32, iterations=iterations)
        peaks.append(peak_bytes(lambda: step(route(routing, poses, weight))))  # noqa: B023
    assert peaks[1] < 1.1 * peaks[0]
    assert peak_bytes(lambda: step(plain_route(routing, poses, weight))) > 4 * peaks[1]
