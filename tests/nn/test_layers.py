"""Capsule layers: what a primary capsule is cut from, and votes plus routing against the reference."""

import numpy as np
import pytest
import reference as ref
import torch
from torch import nn

from torchcaps.core.functional import present
from torchcaps.core.types import Capsules
from torchcaps.kernels import tuning
from torchcaps.nn.dense import DenseCaps
from torchcaps.nn.losses import margin_loss
from torchcaps.nn.norm import BatchNorm
from torchcaps.nn.primary import PrimaryCaps
from torchcaps.routing import EM, ROUTINGS, Dynamic, VoteShape
from torchcaps.testing import check_layer, check_primary_caps

SIZES = {"children": 7, "child_dim": 3, "parents": 5, "dim": 4}


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1)])
@pytest.mark.parametrize("options", [{}, {"norm": True}, {"divide": 6}], ids=str)
def test_a_primary_capsule_is_cut_from_one_position(kernel: int, stride: int, options: dict) -> None:
    layer = PrimaryCaps(2, 6, 4, kernel, stride, **options)
    check_primary_caps(layer, channels=2, types=6, dim=4, kernel=kernel, stride=stride)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 2)])
def test_a_kernels_rounding_is_no_receptive_field(kernel: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, "fast")
    check_primary_caps(PrimaryCaps(2, 6, 4, kernel, stride), channels=2, types=6, dim=4, kernel=kernel, stride=stride)


def test_primary_capsules_are_ordered_by_type_row_and_column() -> None:
    layer = PrimaryCaps(2, types=3, dim=4, kernel=3)
    features = torch.randn(1, 2, 6, 7)
    s = layer.conv(features)
    poses = layer(features).poses[0]
    for kind, y, x in ((0, 0, 0), (1, 2, 3), (2, 3, 4)):
        channels = s[0, 4 * kind : 4 * kind + 4, y, x].detach().double().numpy()
        np.testing.assert_allclose(poses[kind, y, x].detach(), ref.squash(channels), atol=1e-6)


def test_divide_shrinks_the_convolution_before_bias_and_squash() -> None:
    features, layer = torch.randn(1, 2, 5, 5), PrimaryCaps(2, 3, 4, 3, divide=3)
    products = torch.nn.functional.conv2d(features, layer.conv.weight)[0, :4, 0, 0].detach().double().numpy()
    s = products / 3 + layer.conv.bias[:4].detach().double().numpy()
    np.testing.assert_allclose(layer(features).poses[0, 0, 0, 0].detach(), ref.squash(s), atol=1e-6)


@pytest.mark.parametrize("name", ROUTINGS)
def test_dense_capsules_conform(name: str) -> None:
    layer = DenseCaps(*SIZES.values(), name)
    check_layer(layer, **SIZES, deterministic=getattr(layer.routing, "deterministic", True))


def test_dense_capsules_take_a_routing_made_by_hand_and_options_by_name() -> None:
    shape = VoteShape(7, 5, 4)
    by_hand = DenseCaps(*SIZES.values(), Dynamic(shape, iterations=2, bias=True))
    by_name = DenseCaps(*SIZES.values(), "dynamic", iterations=2, bias=True)
    by_name.load_state_dict(by_hand.state_dict())
    capsules = Capsules(torch.randn(2, 7, 3), torch.rand(2, 7))
    assert torch.equal(by_hand(capsules).poses, by_name(capsules).poses)


@pytest.mark.parametrize("trace", [False, True], ids=["fused", "plain"])
def test_from_capsules_to_loss_and_back_matches_reference(trace: bool) -> None:
    """Votes, routing, lengths and margin loss as one chain, by hand both ways; a trace needs the plain twin."""
    torch.manual_seed(0)
    layer = DenseCaps(*SIZES.values(), init_std=1.0).double()
    poses = torch.randn(3, 7, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0], [4], [2]])
    loss = margin_loss(layer(Capsules(poses, torch.ones(3, 7)), trace).activations, present(labels, 5))
    d_poses, d_weight = torch.autograd.grad(loss, (poses, layer.weight))

    weight, expected_loss, expected_d_weight = layer.weight.detach().numpy(), 0.0, np.zeros(layer.weight.shape)
    for row, u in enumerate(poses.detach().numpy()):
        truth = np.eye(5)[labels[row, 0]]
        u_hat = ref.votes(u, weight)
        passes = ref.route(u_hat, 3)
        lengths = np.array([ref.length(v) for v in passes[-1].v])
        expected_loss += ref.margin_loss(lengths, truth) / 3
        slopes = ref.margin_loss_backward(lengths, truth) / 3
        dv = np.array([ref.length_backward(v, slope) for v, slope in zip(passes[-1].v, slopes, strict=True)])
        du, dw = ref.votes_backward(u, weight, ref.route_backward_full(u_hat, passes, dv).u_hat)
        np.testing.assert_allclose(d_poses[row], du, rtol=0, atol=1e-10)
        expected_d_weight += dw
    np.testing.assert_allclose(loss.item(), expected_loss, rtol=0, atol=1e-7)
    np.testing.assert_allclose(d_weight, expected_d_weight, rtol=0, atol=1e-10)


def test_batch_norm_alone_is_pytorchs() -> None:
    ours, theirs = BatchNorm(3), nn.BatchNorm2d(3)
    images = torch.randn(4, 3, 5, 5)
    assert torch.equal(ours(images), theirs(images))
    assert torch.equal(ours.running_var, theirs.running_var)


def test_plain_poses_are_as_active_as_they_are_long_up_to_one() -> None:
    layer = DenseCaps(*SIZES.values(), "em")
    poses = torch.linspace(-1, 1, 42).view(2, 7, 3)
    active = poses.norm(dim=2).clamp(max=1)
    assert 0 < (active < 1).sum() < active.numel()
    torch.testing.assert_close(layer(poses).poses, layer(Capsules(poses, active)).poses)


def test_em_starts_with_votes_that_count_beside_its_variance_floor() -> None:
    """With the short votes of dynamic routing a network would stay at chance."""
    torch.manual_seed(0)
    em, dynamic = (DenseCaps(32, 8, 10, 16, routing) for routing in ("em", "dynamic"))
    assert em.weight.std() > 5 * dynamic.weight.std()
    assert DenseCaps(32, 8, 10, 16, "em", init_std=0.1).weight.std() < 0.1
    votes = torch.einsum("bip,ijdp->bijd", torch.nn.functional.normalize(torch.randn(4, 32, 8), dim=2), em.weight)
    assert isinstance(em.routing, EM)
    assert votes.var(1).mean() > 100 * em.routing.variance_floor


def test_channels_last_is_for_convolutions_only() -> None:
    layer = DenseCaps(6, 4, 3, 5).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    assert layer.weight.is_contiguous()
    assert layer.weight.is_leaf
