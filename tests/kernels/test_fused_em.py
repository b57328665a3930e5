"""EM routing in C against its plain twin: values, every gradient, odd shapes, extremes, threads, and as an operator."""

import copy
import itertools
import shutil
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from torchcaps.core.types import CapsuleMap, Capsules
from torchcaps.kernels import em_operators, fused_em
from torchcaps.kernels.em_operators import em_forward
from torchcaps.nn import ClassCaps, ConvCaps, DenseCaps
from torchcaps.training.forecast import peak_bytes

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

Inputs = tuple[Tensor, Tensor]


def grid(types: int, height: int, width: int, dim: int, batch: int = 3) -> Inputs:
    return torch.randn(batch, types, height, width, dim), torch.rand(batch, types, height, width) * 0.8 + 0.1


def flat(children: int, dim: int, batch: int = 3) -> Inputs:
    return torch.randn(batch, children, dim), torch.rand(batch, children)


CASES = {
    "matrix": lambda: (ConvCaps(8, 16, 16, 16, 3, 2, "em", matrix=True), grid(8, 8, 9, 16)),
    "one iteration": lambda: (ConvCaps(2, 16, 8, 16, 3, 1, "em", matrix=True, iterations=1), grid(2, 5, 4, 16)),
    "four iterations": lambda: (ConvCaps(2, 16, 3, 16, 3, 1, "em", matrix=True, iterations=4), grid(2, 5, 4, 16)),
    "local": lambda: (ConvCaps(3, 16, 5, 16, 3, 1, "em", matrix=True, local=True), grid(3, 6, 5, 16)),
    "side of 3": lambda: (ConvCaps(3, 9, 11, 9, 2, 1, "em", matrix=True), grid(3, 5, 4, 9)),
    "children that nobody sees": lambda: (ConvCaps(3, 4, 9, 4, 2, 3, "em", matrix=True), grid(3, 7, 6, 4)),
    "vectors": lambda: (ConvCaps(3, 5, 11, 7, 3, 1, "em"), grid(3, 5, 6, 5)),
    "options": lambda: (
        ConvCaps(2, 16, 8, 16, 3, 1, "em", density_scale=0.25, inverse_temperature=2.0, variance_floor=0.01),
        grid(2, 4, 4, 16),
    ),
    "classes": lambda: (ClassCaps((16, 4, 4), 16, 5, 16, matrix=True), grid(16, 4, 4, 16)),
    "classes of vectors": lambda: (ClassCaps((3, 4, 5), 6, 9, 7), grid(3, 4, 5, 6)),
    "dense": lambda: (DenseCaps(50, 8, 10, 16, "em", init_std=0.5), flat(50, 8)),
    "one of everything": lambda: (DenseCaps(1, 1, 1, 1, "em"), flat(1, 1, batch=1)),
    "17 images": lambda: (DenseCaps(9, 4, 8, 4, "em", init_std=0.5), flat(9, 4, batch=17)),
}


def make(case: str) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    layer, inputs = CASES[case]()
    with torch.no_grad():
        layer.routing.beta_u.normal_()
        layer.routing.beta_a.normal_()
    return layer, inputs


def run(layer: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Outputs, and the gradients of everything."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    kind = Capsules if leaves[0].dim() == 3 else CapsuleMap
    output = layer(kind(*leaves))[:2]
    torch.manual_seed(1)
    upstream = [torch.randn(tensor.shape).to(tensor.dtype) for tensor in output]
    return [*output, *torch.autograd.grad(output, [*leaves, *layer.parameters()], upstream)]


@pytest.mark.parametrize("case", CASES)
def test_values_and_all_gradients_match_the_plain_twin(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, inputs = make(case)
    assert fused_em.runs(layer.routing)
    found = run(layer, inputs)
    with torch.no_grad():
        inference = layer((Capsules if inputs[0].dim() == 3 else CapsuleMap)(*inputs))
    monkeypatch.setenv("TORCHCAPS_KERNELS", "plain")
    expected = run(copy.deepcopy(layer).double(), (inputs[0].double(), inputs[1].double()))
    for ours, plain in zip(found, expected, strict=True):
        scale = max(plain.abs().max().item(), 1e-6)
        torch.testing.assert_close(ours.double(), plain, rtol=1e-4, atol=1e-4 * scale)
    assert torch.equal(inference[0], found[0])
    assert torch.equal(inference[1], found[1])


@pytest.mark.parametrize("case", ["matrix", "classes", "vectors", "17 images"])
def test_threads_change_no_bit(case: str) -> None:
    layer, inputs = make(case)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(layer, inputs))
    finally:
        torch.set_num_threads(before)
    for one, other in itertools.pairwise(results):
        assert all(map(torch.equal, one, other))


EXTREMES = {
    "zero poses": lambda u, a: (u * 0, a),
    "huge poses": lambda u, a: (u * 1e9, a),
    "far from zero": lambda u, a: (u + 1e4, a),
    "tiny poses": lambda u, a: (u * 1e-30, a),
    "identical poses": lambda u, a: (u[:, :1].expand_as(u), a),
    "nobody is there": lambda u, a: (u, a * 0),
    "faint children": lambda u, a: (u, a * 1e-30),
    "one child far off": lambda u, a: (torch.cat([u[:, :1] * 1e6, u[:, 1:]], 1), a),
}


@pytest.mark.parametrize("case", ["matrix", "vectors", "classes", "dense"])
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)
def test_everything_is_finite_at_extremes(extreme, case: str) -> None:
    layer, inputs = make(case)
    found = run(layer, extreme(*inputs))
    assert all(tensor.isfinite().all() for tensor in found)
    assert ((found[1] >= 0) & (found[1] <= 1)).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_in_its_image(bad: float) -> None:
    layer, (poses, activations) = make("matrix")
    clean = layer(CapsuleMap(poses, activations))
    poses = poses.clone()
    poses[1, 2, 3, 4, 5] = bad
    found = layer(CapsuleMap(poses, activations))
    assert not found.poses[1].isfinite().all()
    for image in (0, 2):
        assert torch.equal(found.poses[image], clean.poses[image])


def test_only_what_the_kernel_takes_is_given_to_it() -> None:
    layer, (poses, activations) = make("dense")
    assert fused_em.supports(layer.routing, Capsules(poses, activations), layer.weight)
    for other in (activations.double(), activations.bfloat16(), activations.to("meta")):
        assert not fused_em.supports(layer.routing, Capsules(poses, other), layer.weight)


def arguments(matrix: bool = True, local: bool = False, batch: int = 2) -> list:
    """Of `em_forward`, for 2 windows of 3 members each on a map of 4 children."""
    torch.manual_seed(0)
    weight = torch.randn(3, 5, 2, 2) if matrix else torch.randn(3, 5, 3, 4)
    leaves = [torch.randn(batch, 4, 4), torch.rand(batch, 4), weight, torch.randn(5), torch.randn(5)]
    places, owners = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.arange(3)
    added = torch.randn(3, weight.shape[2] * (weight.shape[3] if matrix else 1))
    options = [[0.05, 0.1], [1.0, 0.5], 5e-4, 1e-12, matrix, local, True]
    return [*(leaf.requires_grad_() for leaf in leaves), places.int(), owners.int(), added, *options]


@pytest.mark.parametrize(("matrix", "local"), [(True, False), (False, True)])
def test_operators_are_as_torch_wants_them(matrix: bool, local: bool) -> None:
    given = arguments(matrix, local)
    torch.library.opcheck(em_forward, given)
    with torch.no_grad():
        mean, activation, *kept = em_forward(*given)
    inputs = [value.detach() if isinstance(value, Tensor) else value for value in given[:-1]]
    backward = [torch.randn_like(mean), torch.randn_like(activation), *kept, *inputs]
    torch.library.opcheck(em_operators.em_backward, backward)


@pytest.mark.parametrize(
    ("index", "wrong"),
    [
        (1, torch.rand(1, 4)),
        (1, torch.rand(2, 1)),
        (1, torch.rand(2, 4).double()),
        (0, torch.randn(2, 4, 5)),
        (3, torch.randn(4)),
        (5, torch.tensor([[0, 1, 2], [1, 2, 4]]).int()),
        (5, torch.tensor([[0, 1, -1]]).int()),
        (5, torch.tensor([[0, 1, 2]])),
        (6, torch.tensor([0, 1, 3]).int()),
        (6, torch.tensor([0, 1]).int()),
        (7, torch.randn(3, 3)),
        (8, [0.1]),
    ],
)
def test_operands_of_other_shapes_are_refused(index: int, wrong: object) -> None:
    given = arguments()
    given[index] = wrong
    with pytest.raises(ValueError, match=r"must|needs|do not fit"):
        em_forward(*given)


@pytest.mark.parametrize("index", range(5))
def test_gradients_of_other_shapes_are_refused(index: int) -> None:
    """Those of the parents, what was kept of the forward pass, and the poses."""
    given = [value.detach() if isinstance(value, Tensor) else value for value in arguments()]
    mean, activation, *kept = em_forward(*given)
    backward = [mean, activation, *kept, *given[:-1]]
    em_operators.em_backward(*backward)
    backward[index] = backward[index][:1]
    with pytest.raises(ValueError, match="must"):
        em_operators.em_backward(*backward)


def test_an_empty_batch_has_empty_answers() -> None:
    given = arguments(batch=0)
    mean, activation, *_ = em_forward(*given)
    assert mean.shape == (0, 2, 5, 4)
    gradients = torch.autograd.grad(mean.sum() + activation.sum(), given[:5])
    assert all((gradient == 0).all() for gradient in gradients)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = ConvCaps(2, 16, 4, 16, 3, 2, "em", matrix=True, iterations=2)
        self.last = ClassCaps((4, 2, 2), 16, 3, 16, matrix=True, iterations=2)

    def forward(self, poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
        return self.last(self.first(CapsuleMap(poses, activations)))[:2]


COMPILED = """
import torch
from torchcaps.nn import ClassCaps, ConvCaps
from torchcaps.core.types import CapsuleMap

torch.manual_seed(0)
first = ConvCaps(2, 16, 4, 16, 3, 2, "em", matrix=True, iterations=2)
last = ClassCaps((4, 2, 2), 16, 3, 16, matrix=True, iterations=2)
leaves = [torch.randn(3, 2, 6, 6, 16, requires_grad=True), torch.rand(3, 2, 6, 6, requires_grad=True)]
seen = []

def model(poses, activations):
    return last(first(CapsuleMap(poses, activations)))[:2]

def look(graph, inputs):
    seen.extend(str(node.target) for node in graph.graph.nodes)
    return graph

results = []
for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
    output = call(*leaves)
    wanted = [*leaves, *first.parameters(), *last.parameters()]
    results.append([*output, *torch.autograd.grad(sum(x.sum() for x in output), wanted)])
for one, other in zip(*results, strict=True):
    torch.testing.assert_close(one, other)
torch.compile(model, fullgraph=True, backend=look)(*leaves)
assert sum("em_forward" in name for name in seen) == 2, seen
"""


def test_compiled_whole_with_gradients() -> None:
    """In a process of its own: here, shapes are checked by wrappers that the compiler does not know."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)


def test_exported_without_the_operator() -> None:
    """A file is read where our operators are not known."""
    exported = torch.export.export(Stack(), grid(2, 6, 6, 16))
    assert not any("torchcaps" in str(node.target) for node in exported.graph.nodes)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_memory_of_the_plain_twin_is_known_too(
    iterations: int, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHCAPS_KERNELS", "plain")
    layer = ConvCaps(8, 16, 8, 16, 3, 1, "em", matrix=True, iterations=iterations)
    leaves = [tensor.requires_grad_(training) for tensor in grid(8, 6, 6, 16, batch=4)]

    def work() -> None:
        with torch.set_grad_enabled(training):
            output = layer(CapsuleMap(*leaves))
            if training:
                (output.poses.sum() + output.activations.sum()).backward()

    work()
    layer.zero_grad()
    for leaf in leaves:
        leaf.grad = None
    assert layer.peak_bytes(4, 6, 6, training=training) == pytest.approx(peak_bytes(work), rel=0.2)
