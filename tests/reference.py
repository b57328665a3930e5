"""Sabour, Frosst and Hinton 2017, transcribed loop by loop in NumPy, with gradients derived by hand.

Slow and plain on purpose: one number at a time, float64, no batch axis, nothing shared with the package. `dv` is the
gradient of a loss with respect to `v`, and so on. Axes: i child, j parent, d pose of a parent, p pose of a child.
"""

from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

Array = np.ndarray


def dot(a: Array, b: Array) -> float:
    return float(sum(x * y for x, y in zip(a, b, strict=True)))


def length(s: Array) -> float:
    return sqrt(dot(s, s))


def length_backward(s: Array, d_length: float) -> Array:
    """∂|s|/∂s = s/|s|; at zero, where the length has a kink, the gradient that moves nothing."""
    n = length(s)
    return np.zeros_like(s) if n == 0 else d_length * s / n


def squash(s: Array) -> Array:
    """Eq. 1."""
    n = length(s)
    return np.zeros_like(s) if n == 0 else n**2 / (1 + n**2) * s / n


def squash_backward(s: Array, dv: Array) -> Array:
    """With v = g(n) s, g(n) = n / (1 + n²), g'(n) = (1 - n²) / (1 + n²)²: ds = g dv + (g' / n) (s · dv) s."""
    n = length(s)
    if n == 0:
        return np.zeros_like(s)
    g, g_prime = n / (1 + n**2), (1 - n**2) / (1 + n**2) ** 2
    return g * dv + g_prime / n * dot(s, dv) * s


def votes(u: Array, weight: Array) -> Array:
    """Eq. 2, right: û[j|i] = W[i, j] u[i]."""
    children, parents, dim, _ = weight.shape
    u_hat = np.zeros((children, parents, dim))
    for i in range(children):
        for j in range(parents):
            for d in range(dim):
                u_hat[i, j, d] = dot(weight[i, j, d], u[i])
    return u_hat


def votes_backward(u: Array, weight: Array, du_hat: Array) -> tuple[Array, Array]:
    """du[i] = Σ_j W[i, j]ᵀ dû[j|i] and dW[i, j] = dû[j|i] u[i]ᵀ."""
    du, d_weight = np.zeros_like(u), np.zeros_like(weight)
    children, parents, dim, child_dim = weight.shape
    for i in range(children):
        for j in range(parents):
            for d in range(dim):
                for p in range(child_dim):
                    du[i, p] += weight[i, j, d, p] * du_hat[i, j, d]
                    d_weight[i, j, d, p] = du_hat[i, j, d] * u[i, p]
    return du, d_weight


def softmax(b: Array, leaky: bool = False) -> Array:
    """Eq. 3; `leaky` has one more parent, "none of the above" (section 7), with logit 0, whose coupling is dropped."""
    total = sum(exp(value) for value in b) + (exp(0.0) if leaky else 0.0)
    return np.array([exp(value) / total for value in b])


def softmax_backward(c: Array, dc: Array) -> Array:
    """db[j] = c[j] (dc[j] - Σ_k c[k] dc[k]). The parent "none of the above" has dc = 0, so it adds nothing."""
    mean = dot(c, dc)
    return np.array([c[j] * (dc[j] - mean) for j in range(len(c))])


@dataclass
class Pass:
    """What one iteration of the routing computed."""

    b: Array
    c: Array
    s: Array
    v: Array
    agreement: Array


def route(
    u_hat: Array, iterations: int, log_priors: Array | None = None, leaky: bool = False, bias: Array | None = None
) -> list[Pass]:
    """Procedure 1. The parents are the last pass's `v`."""
    children, parents, dim = u_hat.shape
    b = np.zeros((children, parents)) if log_priors is None else log_priors.copy()
    passes = []
    for _ in range(iterations):
        c = np.array([softmax(b[i], leaky) for i in range(children)])
        s = np.zeros((parents, dim)) if bias is None else bias.copy()
        for i in range(children):
            for j in range(parents):
                s[j] += c[i, j] * u_hat[i, j]
        v = np.array([squash(s[j]) for j in range(parents)])
        agreement = np.array([[dot(u_hat[i, j], v[j]) for j in range(parents)] for i in range(children)])
        passes.append(Pass(b, c, s, v, agreement))
        b = b + agreement
    return passes


@dataclass
class RouteGradients:
    u_hat: Array
    log_priors: Array
    bias: Array


def route_backward_full(u_hat: Array, passes: list[Pass], dv: Array) -> RouteGradients:
    """Back through every iteration: a vote matters as a summand of s, and by its agreement for all later couplings."""
    children, parents, _ = u_hat.shape
    du_hat, d_bias = np.zeros_like(u_hat), np.zeros_like(dv)
    db = np.zeros((children, parents))  # of the logits after the current pass: nobody reads those of the last
    for r in reversed(range(len(passes))):
        now = passes[r]
        dv_now = dv.copy() if r == len(passes) - 1 else np.zeros_like(dv)
        for i in range(children):
            for j in range(parents):
                dv_now[j] += db[i, j] * u_hat[i, j]
                du_hat[i, j] += db[i, j] * now.v[j]
        db = db + _through_sum(u_hat, now, dv_now, du_hat, d_bias)
    return RouteGradients(du_hat, db, d_bias)


def route_backward_last(u_hat: Array, passes: list[Pass], dv: Array) -> RouteGradients:
    """Couplings held constant for the votes; log priors are learned through the last softmax alone."""
    du_hat, d_bias = np.zeros_like(u_hat), np.zeros_like(dv)
    db = _through_sum(u_hat, passes[-1], dv, du_hat, d_bias)
    return RouteGradients(du_hat, db, d_bias)


def _through_sum(u_hat: Array, now: Pass, dv: Array, du_hat: Array, d_bias: Array) -> Array:
    """Back through squash and weighted sum, adding to `du_hat` and `d_bias`; returns what reaches the logits."""
    children, parents, _ = u_hat.shape
    ds = np.array([squash_backward(now.s[j], dv[j]) for j in range(parents)])
    d_bias += ds
    dc = np.zeros((children, parents))
    for i in range(children):
        for j in range(parents):
            dc[i, j] = dot(ds[j], u_hat[i, j])
            du_hat[i, j] += now.c[i, j] * ds[j]
    return np.array([softmax_backward(now.c[i], dc[i]) for i in range(children)])


M_PLUS, M_MINUS, ABSENT_WEIGHT = 0.9, 0.1, 0.5


def margin_loss(lengths: Array, present: Array) -> float:
    """Eq. 4, summed over the classes of one image."""
    total = 0.0
    for k in range(len(lengths)):
        total += present[k] * max(0.0, M_PLUS - lengths[k]) ** 2
        total += ABSENT_WEIGHT * (1 - present[k]) * max(0.0, lengths[k] - M_MINUS) ** 2
    return total


def margin_loss_backward(lengths: Array, present: Array) -> Array:
    slopes = np.zeros_like(lengths)
    for k in range(len(lengths)):
        slopes[k] -= 2 * present[k] * max(0.0, M_PLUS - lengths[k])
        slopes[k] += 2 * ABSENT_WEIGHT * (1 - present[k]) * max(0.0, lengths[k] - M_MINUS)
    return slopes


def reconstruction_loss(reconstruction: Array, target: Array) -> float:
    """Section 4.1: the sum of squared differences over the pixels of one image."""
    return float(sum((a - b) ** 2 for a, b in zip(reconstruction.ravel(), target.ravel(), strict=True)))


def reconstruction_loss_backward(reconstruction: Array, target: Array) -> Array:
    return 2 * (reconstruction - target)


def mean_over_batch(losses: list[float]) -> float:
    return sum(losses) / len(losses)
