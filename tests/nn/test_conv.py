"""Convolutional capsules: which transforms meet which children, who competes, what it costs, and that stacks learn."""

from typing import Any

import numpy as np
import pytest
import reference as ref
import torch
from torch import Tensor, nn

from torchcaps import data as named
from torchcaps.core.errors import UserError
from torchcaps.core.functional import matrix_transform, present
from torchcaps.core.types import CapsuleMap, Capsules
from torchcaps.core.windows import Windows
from torchcaps.kernels import blocks
from torchcaps.nn.classes import ClassCaps
from torchcaps.nn.conv import ConvCaps
from torchcaps.nn.losses import margin_loss
from torchcaps.nn.primary import PrimaryCaps, PrimaryPoses
from torchcaps.routing import ROUTINGS
from torchcaps.testing.modules import (
    require_finite_gradients,
    require_independent_images,
    require_repeatable,
    require_stateless,
)
from torchcaps.training.forecast import peak_bytes
from torchcaps.training.scoring import exact_match


def capsule_map(types: int, height: int, width: int, dim: int, batch: int = 2) -> CapsuleMap:
    torch.manual_seed(0)
    poses = torch.randn(batch, types, height, width, dim, dtype=torch.float64) * 0.5
    return CapsuleMap(poses, torch.rand(batch, types, height, width, dtype=torch.float64) * 0.8 + 0.1)


def children_of(grid: CapsuleMap, row: int, y: int, x: int, layer: ConvCaps) -> list[tuple[int, int, int, int, int]]:
    """`(ky, kx, type, Y, X)` of every child of the parents at (y, x), in the order of the weights."""
    top, left = y * layer.stride, x * layer.stride
    return [
        (ky, kx, kind, top + ky, left + kx)
        for ky in range(layer.kernel)
        for kx in range(layer.kernel)
        for kind in range(grid.poses.shape[1])
    ]


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (2, 3), (1, 1)])
def test_every_place_in_the_window_has_its_own_transform(kernel: int, stride: int) -> None:
    """With one iteration on local windows, a parent is what Procedure 1 makes of its window alone."""
    layer = ConvCaps(2, 3, 4, 5, kernel, stride, "dynamic", iterations=1, local=True).double()
    grid = capsule_map(2, 6, 5, 3)
    output = layer(grid)
    weight = layer.weight.detach().numpy()
    assert output.poses.shape == (2, 4, (6 - kernel) // stride + 1, (5 - kernel) // stride + 1, 5)
    for y, x in ((0, 0), (output.poses.shape[2] - 1, output.poses.shape[3] - 1)):
        places = children_of(grid, 1, y, x, layer)
        u = np.array([grid.poses[1, kind, Y, X].numpy() for _, _, kind, Y, X in places])
        transforms = np.array([weight[ky, kx, kind] for ky, kx, kind, _, _ in places])
        v = ref.route(ref.votes(u, transforms), 1)[-1].v
        np.testing.assert_allclose(output.poses[1, :, y, x].detach(), v, rtol=0, atol=1e-9)
        lengths = [ref.length(row) for row in v]
        np.testing.assert_allclose(output.activations[1, :, y, x].detach(), lengths, rtol=0, atol=1e-6)


def test_matrix_capsules_multiply_poses_from_the_right() -> None:
    torch.manual_seed(0)
    weight, pose = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    votes = torch.einsum("tjdp,p->tjd", matrix_transform(weight), pose.flatten())
    torch.testing.assert_close(votes, (pose @ weight).flatten(2))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize("name", ["dynamic", "em"])
def test_all_parents_that_a_child_reaches_compete_for_it(name: str, kernel: int, stride: int) -> None:
    """The couplings of one child sum to one over every window it is in; with `local` over each of them."""
    grid = capsule_map(2, 6, 7, 4)
    for local in (False, True):
        layer = ConvCaps(2, 4, 3, 4, kernel, stride, name, matrix=True, local=local).double()
        windows = Windows(6, 7, kernel, stride)
        couplings = layer(grid, trace=True).trace.couplings[-1].sum(2).detach()
        couplings = couplings.unflatten(0, (2, windows.rows, windows.columns))
        totals, reached = torch.zeros(2, 2, 6, 7, dtype=torch.float64), torch.zeros(2, 2, 6, 7)
        for y in range(windows.rows):
            for x in range(windows.columns):
                for i, (_, _, kind, Y, X) in enumerate(children_of(grid, 0, y, x, layer)):
                    totals[:, kind, Y, X] += couplings[:, y, x, i]
                    reached[:, kind, Y, X] += 1
        expected = reached if local else (reached > 0)
        torch.testing.assert_close(totals, expected.double(), rtol=0, atol=1e-9)


def test_competition_is_stable_and_exact_for_any_logits() -> None:
    """Logits a thousand apart, in a map where corners are in one window and the middle in nine."""
    windows = Windows(5, 5, 3, 1)
    torch.manual_seed(0)
    logits = torch.randn(9, 9, 4) * 1000
    normaliser = windows.competition(logits)
    assert normaliser.isfinite().all()
    middle = torch.stack([logits[3 * y + x, 3 * (2 - y) + (2 - x)] for y in range(3) for x in range(3)])
    for place in range(9):
        assert normaliser[place, 8 - place, 0].item() == pytest.approx(middle.flatten().logsumexp(0).item())
    assert normaliser[0, 0, 0].item() == pytest.approx(logits[0, 0].logsumexp(0).item())


@pytest.mark.parametrize("matrix", [False, True], ids=["vector", "matrix"])
@pytest.mark.parametrize("name", ROUTINGS)
def test_convolutional_capsules_conform(name: str, matrix: bool) -> None:
    layer = ConvCaps(2, 4, 3, 4, 2, 1, name, matrix=matrix).double().eval()
    grid = capsule_map(2, 3, 4, 4, batch=3)

    def run(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
        return layer(CapsuleMap(poses, activations))[:2]

    if getattr(layer.routing, "deterministic", True):
        require_independent_images("layer", run, grid[:2])
        require_repeatable("layer", run, grid[:2])
    require_stateless("layer", layer, run, grid[:2])
    nothing = torch.zeros_like(grid.poses)
    require_finite_gradients("layer of all-zero capsules", layer, run, (nothing, grid.activations))


@pytest.mark.parametrize("name", ["dynamic", "em"])
def test_blocks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image after the other, computed again for the gradient, or all at once."""
    layer = ConvCaps(2, 4, 3, 4, 3, 1, name).double()
    grid = capsule_map(2, 5, 5, 4, batch=3)
    results = []
    for size in (1, 1 << 30):
        monkeypatch.setitem(blocks.BLOCK_BYTES, "cpu", size)
        poses = grid.poses.clone().requires_grad_()
        output = layer(CapsuleMap(poses, grid.activations))
        gradients = torch.autograd.grad(output.poses.square().sum() + output.activations.sum(), (poses, layer.weight))
        results.append((output.poses, output.activations, *gradients))
    for small, large in zip(*results, strict=True):
        torch.testing.assert_close(small, large, rtol=1e-9, atol=1e-9)


def test_gradient_of_a_stack_is_that_of_the_function() -> None:
    torch.manual_seed(0)
    first = ConvCaps(2, 4, 2, 4, 2, 1, "em", matrix=True, iterations=2).double()
    last = ClassCaps((2, 2, 2), 4, 3, 4, "em", matrix=True, iterations=2).double()
    grid = capsule_map(2, 3, 3, 4, batch=1)

    def function(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
        return last(first(CapsuleMap(poses, activations)))[:2]

    torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in grid[:2]], fast_mode=True)


@pytest.mark.parametrize("matrix", [False, True], ids=["vector", "matrix"])
def test_class_capsules_share_transforms_and_add_coordinates(matrix: bool) -> None:
    """Equal capsules at all positions vote alike, but for the two numbers that say where they are."""
    layer = ClassCaps((2, 3, 4), 4, 5, 4, matrix=matrix).double()
    grid = capsule_map(2, 1, 1, 4)
    spread = CapsuleMap(grid.poses.expand(-1, -1, 3, 4, -1), grid.activations.expand(-1, -1, 3, 4))
    children, weight = layer.placed(spread), layer.transforms()
    votes = torch.einsum("biq,ijdq->bijd", children.poses, weight).unflatten(1, (2, 3, 4))
    place = [1, 3] if matrix else [0, 1]
    others = [d for d in range(4) if d not in place]
    torch.testing.assert_close(votes[..., others], votes[:, :, :1, :1][..., others].expand(-1, -1, 3, 4, -1, -1))
    steps = votes[..., place] - votes[:, :, :1, :1][..., place]
    for y in range(3):
        for x in range(4):
            expected = torch.tensor([y / 3, x / 4], dtype=torch.float64).expand(2, 2, 5, 2)
            torch.testing.assert_close(steps[:, :, y, x], expected, rtol=0, atol=1e-7)
    assert layer(spread).poses.shape == (2, 5, 4)


def test_maps_and_flat_capsules_are_the_same_capsules() -> None:
    primary = PrimaryCaps(1, types=3, dim=4, kernel=3)
    capsules = primary(torch.rand(2, 1, 6, 7))
    listed = capsules.flat()
    assert capsules.poses.shape == (2, 3, 4, 5, 4)
    assert torch.equal(capsules.poses[0, 2, 1, 3], listed.poses[0, (2 * 4 + 1) * 5 + 3])
    assert torch.equal(capsules.activations[1, 1, 2, 4], listed.activations[1, (1 * 4 + 2) * 5 + 4])


def test_a_map_smaller_than_the_kernel_is_refused() -> None:
    with pytest.raises(UserError, match="2x5 capsules is too small for a kernel of 3"):
        ConvCaps(2, 4, 3, 4, 3)(capsule_map(2, 2, 5, 4))
    with pytest.raises(ValueError, match="square"):
        ConvCaps(2, 8, 3, 8, 3, matrix=True)


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("batch", [2, 16])
@pytest.mark.parametrize(
    ("name", "sizes", "grid"),
    [
        ("em", (8, 16, 16, 16, 3, 2), (14, 14)),
        ("em", (8, 16, 8, 16, 3, 1), (6, 6)),
        ("dynamic", (4, 8, 8, 16, 3, 2), (10, 10)),
        ("dynamic", (6, 8, 8, 8, 5, 1), (8, 9)),
    ],
    ids=str,
)
def test_peak_memory_is_known_beforehand(
    name: str, sizes: tuple[int, ...], grid: tuple[int, int], batch: int, training: bool
) -> None:
    types, child_dim, parents, dim, kernel, stride = sizes
    layer = ConvCaps(types, child_dim, parents, dim, kernel, stride, name, matrix=name == "em")
    poses = torch.randn(batch, types, *grid, child_dim, requires_grad=training)
    activations = torch.rand(batch, types, *grid, requires_grad=training)

    def work() -> None:
        with torch.set_grad_enabled(training):
            output = layer(CapsuleMap(poses, activations))
            if training:
                (output.poses.sum() + output.activations.sum()).backward()

    work()
    layer.zero_grad()
    poses.grad = activations.grad = None
    measured = peak_bytes(work)
    assert layer.peak_bytes(batch, *grid, training=training) == pytest.approx(measured, rel=0.2)


class TwoLayers(nn.Module):
    """Digits to two layers of convolutional capsules to class capsules: vectors, or matrices for EM."""

    def __init__(self, routing: str) -> None:
        super().__init__()
        matrix, dim = (True, 16) if routing == "em" else (False, 8)
        norm = nn.Identity() if matrix else nn.BatchNorm2d(16)
        options: dict[str, Any] = {"matrix": matrix, "iterations": 2}
        self.features = nn.Sequential(nn.Conv2d(1, 16, 5, 2), norm, nn.ReLU())
        self.primary = PrimaryPoses(16, 4, dim) if matrix else PrimaryCaps(16, 4, dim, 1)
        self.first = ConvCaps(4, dim, 6, dim, 3, 2, routing, **options)
        self.second = ConvCaps(6, dim, 6, dim, 3, 1, routing, **options)
        self.classes = ClassCaps((6, 3, 3), dim, 10, dim, routing, **options)

    def forward(self, images: Tensor) -> Tensor:
        capsules = self.primary(self.features(images))
        if isinstance(capsules, Capsules):
            capsules = CapsuleMap.arranged(capsules, 4, 12, 12)
        return self.classes(self.second(self.first(capsules))).activations


@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_two_convolutional_layers_learn(routing: str) -> None:
    torch.manual_seed(0)
    model = TwoLayers(routing)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    stream = named.resolve("mnist-mini").stream(named.images("mnist-mini", "train"), 0)
    losses, right = [], []
    for step in range(100):
        batch = stream.batch(step, 16)
        lengths = model(batch.images)
        loss = margin_loss(lengths, present(batch.labels, 10))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        right.append(exact_match(lengths, batch.labels).float().mean().item())
    assert np.isfinite(losses).all()
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])
    assert np.mean(right[-20:]) > 0.4
