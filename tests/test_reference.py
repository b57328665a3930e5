"""The reference is right by itself: its hand-derived gradients are those of its own forward passes."""

from collections.abc import Callable

import numpy as np
import pytest
import reference as ref


def numerical_gradient(function: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    gradient = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        high, low = x.copy(), x.copy()
        high[place] += step
        low[place] -= step
        gradient[place] = (function(high) - function(low)) / (2 * step)
    return gradient


def assert_gradient(found: np.ndarray, function: Callable[[np.ndarray], float], x: np.ndarray) -> None:
    np.testing.assert_allclose(found, numerical_gradient(function, x), atol=1e-8)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def test_squash_of_a_known_vector() -> None:
    np.testing.assert_allclose(ref.squash(np.array([3.0, 4.0])), np.array([0.6, 0.8]) * 25 / 26)


def test_squash_backward(random: np.random.Generator) -> None:
    for scale in (0.1, 1.0, 5.0):
        s, dv = random.normal(size=4) * scale, random.normal(size=4)
        assert_gradient(ref.squash_backward(s, dv), lambda x, dv=dv: ref.dot(dv, ref.squash(x)), s)


def test_votes_backward(random: np.random.Generator) -> None:
    u, weight, given = (random.normal(size=size) for size in ((3, 2), (3, 4, 5, 2), (3, 4, 5)))
    du, d_weight = ref.votes_backward(u, weight, given)
    assert_gradient(du, lambda x: float((given * ref.votes(x, weight)).sum()), u)
    assert_gradient(d_weight, lambda x: float((given * ref.votes(u, x)).sum()), weight)


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_routing_backward_through_all_iterations(random: np.random.Generator, iterations: int, leaky: bool) -> None:
    u_hat, priors, bias, dv = (random.normal(size=size) for size in ((4, 3, 2), (4, 3), (3, 2), (3, 2)))

    def loss(u_hat: np.ndarray, priors: np.ndarray, bias: np.ndarray) -> float:
        return float((dv * ref.route(u_hat, iterations, priors, leaky, bias)[-1].v).sum())

    found = ref.route_backward_full(u_hat, ref.route(u_hat, iterations, priors, leaky, bias), dv)
    assert_gradient(found.u_hat, lambda x: loss(x, priors, bias), u_hat)
    assert_gradient(found.log_priors, lambda x: loss(u_hat, x, bias), priors)
    assert_gradient(found.bias, lambda x: loss(u_hat, priors, x), bias)


def test_routing_backward_with_constant_couplings(random: np.random.Generator) -> None:
    u_hat, dv = random.normal(size=(4, 3, 2)), random.normal(size=(3, 2))
    passes = ref.route(u_hat, 3)

    def loss(votes: np.ndarray) -> float:
        summed = [sum(passes[-1].c[i, j] * votes[i, j] for i in range(4)) for j in range(3)]
        return sum(ref.dot(dv[j], ref.squash(summed[j])) for j in range(3))

    assert_gradient(ref.route_backward_last(u_hat, passes, dv).u_hat, loss, u_hat)


def test_one_iteration_needs_no_choice_of_gradient(random: np.random.Generator) -> None:
    u_hat, dv = random.normal(size=(4, 3, 2)), random.normal(size=(3, 2))
    passes = ref.route(u_hat, 1)
    full, last = ref.route_backward_full(u_hat, passes, dv), ref.route_backward_last(u_hat, passes, dv)
    np.testing.assert_array_equal(full.u_hat, last.u_hat)


def test_losses_backward(random: np.random.Generator) -> None:
    lengths, present = random.random(5), np.array([1.0, 0, 0, 1, 0])
    assert_gradient(ref.margin_loss_backward(lengths, present), lambda x: ref.margin_loss(x, present), lengths)
    picture, target = random.random((3, 3)), random.random((3, 3))
    backward = ref.reconstruction_loss_backward(picture, target)
    assert_gradient(backward, lambda x: ref.reconstruction_loss(x, target), picture)
