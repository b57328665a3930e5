"""The pure functions against the loop-by-loop reference."""

import numpy as np
import pytest
import reference as ref
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from torchcaps.core.functional import length, mask, present, squash, votes
from torchcaps.testing import check_squash

EXACT = {"rtol": 0, "atol": 1e-10}
sizes = st.integers(1, 5)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@given(sizes, st.integers(2, 6), st.sampled_from([0.5, 1.0, 4.0, 20.0]))
def test_squash_matches_reference(count: int, dim: int, scale: float) -> None:
    s, dv = (random(count, dim) * scale).detach().requires_grad_(), random(count, dim, seed=1)
    v = squash(s)
    (ds,) = torch.autograd.grad(v, s, dv)
    for row in range(count):
        given_s, given_dv = s[row].detach().numpy(), dv[row].detach().numpy()
        np.testing.assert_allclose(v[row].detach(), ref.squash(given_s), **EXACT)
        np.testing.assert_allclose(ds[row], ref.squash_backward(given_s, given_dv), **EXACT)


def test_squash_conforms() -> None:
    check_squash(squash)


def test_length_has_a_gradient_at_zero() -> None:
    poses = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    lengths = length(poses)
    np.testing.assert_allclose(lengths.detach(), [0, 5], atol=1e-6)
    (gradient,) = torch.autograd.grad(lengths.sum(), poses)
    np.testing.assert_allclose(gradient, [[0, 0], [0.6, 0.8]], **EXACT)


@given(sizes, sizes, sizes, sizes, sizes)
def test_votes_match_reference(batch: int, children: int, parents: int, dim: int, child_dim: int) -> None:
    poses, weight = random(batch, children, child_dim), random(children, parents, dim, child_dim, seed=1)
    u_hat, given = votes(poses, weight), random(batch, children, parents, dim, seed=2)
    d_poses, d_weight = torch.autograd.grad(u_hat, (poses, weight), given)
    u, w, du_hat = (tensor.detach().numpy() for tensor in (poses, weight, given))
    backward = [ref.votes_backward(u[row], w, du_hat[row]) for row in range(batch)]
    for row in range(batch):
        np.testing.assert_allclose(u_hat[row].detach(), ref.votes(u[row], w), **EXACT)
        np.testing.assert_allclose(d_poses[row], backward[row][0], **EXACT)
    np.testing.assert_allclose(d_weight, sum(d_weight for _, d_weight in backward), **EXACT)


def test_present_marks_every_label() -> None:
    assert present(torch.tensor([[1, 3], [0, 2]]), 4).tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]


def test_mask_keeps_one_capsule_for_each_label() -> None:
    poses = torch.arange(1.0, 13).reshape(1, 3, 4)
    first, second = mask(poses, torch.tensor([[2, 0]]))[0].unflatten(1, (3, 4))
    assert torch.equal(first[2], poses[0, 2])
    assert torch.equal(second[0], poses[0, 0])
    assert first[:2].abs().sum() == second[1:].abs().sum() == 0


def test_shapes_are_checked_while_testing() -> None:
    with pytest.raises(TypeCheckError):
        votes(torch.zeros(2, 3, 4), torch.zeros(5, 6, 7, 4))
