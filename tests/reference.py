"""Sabour, Frosst and Hinton 2017, transcribed loop by loop in NumPy, with gradients derived by hand; other routings.

Slow and plain on purpose: one number at a time, float64, no batch axis, nothing shared with the package. `dv` is the
gradient of a loss with respect to `v`, and so on. Axes: i child, j parent, d pose of a parent, p pose of a child.
"""

from dataclasses import dataclass
from math import e, exp, log, pi, sqrt

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


@dataclass
class Routed:
    """What a routing other than Procedure 1 answers, and its passes: logits, couplings and agreement of each."""

    poses: Array
    activations: Array
    passes: list[tuple[Array, Array, Array]]


def logistic(x: float) -> float:
    return 1 / (1 + exp(-x))


def dots(u_hat: Array, v: Array) -> Array:
    return np.array([[dot(vote, v[j]) for j, vote in enumerate(row)] for row in u_hat])


def weighted_sum(weights: Array, u_hat: Array) -> Array:
    children, parents, dim = u_hat.shape
    s = np.zeros((parents, dim))
    for i in range(children):
        for j in range(parents):
            s[j] += weights[i, j] * u_hat[i, j]
    return s


def fixed_couplings(u_hat: Array, b: Array) -> Routed:
    """One pass with couplings that no vote has a say in: uniform for b = 0."""
    c = np.array([softmax(row) for row in b])
    v = np.array([squash(s) for s in weighted_sum(c, u_hat)])
    return Routed(v, np.array([length(x) for x in v]), [(b, c, dots(u_hat, v))])


def self_attention(u_hat: Array, log_priors: Array) -> Routed:
    """Mazzia, Salvetti and Chiaberge 2021, Eqs. 4 to 8, with the whole matrix of children against children."""
    children, parents, dim = u_hat.shape
    b = np.zeros((children, parents))
    for j in range(parents):
        for i in range(children):
            for k in range(children):
                b[i, j] += dot(u_hat[i, j], u_hat[k, j]) / sqrt(dim)
    c = np.array([softmax(row) for row in b])
    s = weighted_sum(c + log_priors, u_hat)
    v = np.array([(1 - 1 / exp(length(x))) * x / length(x) for x in s])
    return Routed(v, np.array([length(x) for x in v]), [(b, c, dots(u_hat, v))])


def layer_norm(x: Array, gain: Array, bias: Array, epsilon: float = 1e-5) -> Array:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return gain * (x - mean) / sqrt(variance + epsilon) + bias


def inverted_dot_product(
    votes: Array, iterations: int, gain: Array, bias: Array, presence: Array, presence_bias: float
) -> Routed:
    """Tsai et al. 2020, Algorithm 1, agreement divided by √d; a logistic reads presence off a pose."""
    children, parents, dim = votes.shape
    a, p, passes = np.zeros((children, parents)), np.zeros((parents, dim)), []
    for _ in range(iterations):
        r = np.array([softmax(row) for row in a])
        p = np.array([layer_norm(x, gain, bias) for x in weighted_sum(r, votes)])
        agreement = dots(votes, p) / sqrt(dim)
        passes.append((a, r, agreement))
        a = agreement
    return Routed(p, np.array([logistic(dot(presence, x) + presence_bias) for x in p]), passes)


def digamma(x: float) -> float:
    """ψ(x) = ψ(x + 1) − 1/x up to where the asymptotic series is exact to machine precision."""
    shift = 0.0
    while x < 20:
        shift -= 1 / x
        x += 1
    return shift + log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) + 1 / (240 * x**8)


def variational_bayes(votes: Array, a: Array, iterations: int, offset: Array, gain: float) -> Routed:
    """Ribeiro et al. 2020, Algorithm 1, around the weighted mean and with the division by N, as in Bishop 10.60-10.65.

    The precision is diagonal; each of its entries has a Wishart of one dimension.
    """
    children, parents, dim = votes.shape
    alpha0, kappa0, nu0, inverse_psi0 = 1.0, 1.0, dim + 1.0, 1.0
    log_rho, passes = np.zeros((children, parents)), []
    m, E_log_pi, E_log_det = np.zeros((parents, dim)), np.zeros(parents), np.zeros(parents)
    for _ in range(iterations):
        r = np.array([softmax(row) for row in log_rho])
        R = np.array([[r[i, j] * a[i] for j in range(parents)] for i in range(children)])
        N = [sum(R[i, j] for i in range(children)) for j in range(parents)]
        found = np.zeros((children, parents))
        for j in range(parents):
            mean = sum(R[i, j] * votes[i, j] for i in range(children)) / N[j]
            S = sum(R[i, j] * (votes[i, j] - mean) ** 2 for i in range(children))
            alpha, kappa, nu = alpha0 + N[j], kappa0 + N[j], nu0 + N[j]
            m[j] = N[j] * mean / kappa
            psi = 1 / (inverse_psi0 + S + kappa0 * N[j] / kappa * mean**2)
            E_log_pi[j] = digamma(alpha) - digamma(sum(alpha0 + n for n in N))
            E_log_det[j] = sum(digamma(nu / 2) + log(2) + log(psi[d]) for d in range(dim))
            for i in range(children):
                distance = dim / kappa + nu * sum(psi[d] * (votes[i, j, d] - m[j, d]) ** 2 for d in range(dim))
                found[i, j] = E_log_pi[j] + E_log_det[j] / 2 - dim / 2 * log(2 * pi) - distance / 2
        passes.append((log_rho, r, found))
        log_rho = found
    entropy = [dim / 2 * log(2 * pi * e) - E_log_det[j] / 2 for j in range(parents)]
    activations = [logistic(offset[j] - gain * exp(E_log_pi[j]) * entropy[j]) for j in range(parents)]
    return Routed(m, np.array(activations), passes)


def self_routing(u: Array, a: Array, u_hat: Array, weight: Array) -> Routed:
    """Hahn, Pyeon and Kim 2019: the couplings are read off the child's own pose."""
    children, parents, _ = u_hat.shape
    b = np.array([[dot(weight[i, j], u[i]) for j in range(parents)] for i in range(children)])
    c = np.array([softmax(row) for row in b])
    share = c * a[:, None]
    used = [sum(share[i, j] for i in range(children)) for j in range(parents)]
    p = np.array([s / used[j] for j, s in enumerate(weighted_sum(share, u_hat))])
    return Routed(p, np.array([amount / sum(a) for amount in used]), [(b, c, dots(u_hat, p))])


def heinsen(
    votes: Array, f_a: Array, iterations: int, beta_use: Array, beta_ign: Array, density_scale: float = 1.0
) -> Routed:
    """Heinsen 2019, Algorithm 1, with the author's 1e-5; `density_scale` is a factor on his ln P."""
    children, parents, dim = votes.shape
    epsilon, logits, passes = 1e-5, np.zeros((children, parents)), []
    mu, score = np.zeros((parents, dim)), np.zeros(parents)
    for _ in range(iterations):
        R = np.array([softmax(row) for row in logits])
        found = np.zeros((children, parents))
        for j in range(parents):
            used = [f_a[i] * R[i, j] for i in range(children)]
            ignored = [f_a[i] - used[i] for i in range(children)]
            score[j] = sum(beta_use[i, j] * used[i] - beta_ign[i, j] * ignored[i] for i in range(children))
            data = sum(used) + epsilon
            mu[j] = sum(used[i] * votes[i, j] for i in range(children)) / data
            variance = sum(used[i] * (votes[i, j] - mu[j]) ** 2 for i in range(children)) / data + epsilon
            for i in range(children):
                log_p = -sum((votes[i, j] - mu[j]) ** 2 / (2 * variance)) - sum(np.log(np.sqrt(variance)))
                found[i, j] = log(logistic(score[j])) + density_scale * log_p
        passes.append((logits, R, found))
        logits = found
    return Routed(mu, np.array([logistic(x) for x in score]), passes)


def heinsen_2022(
    x: Array, f_a: Array, votes: Array, iterations: int, beta_use: Array, beta_ign: Array, **network: Array
) -> Routed:
    """Heinsen 2022, one number after the other; `network` are the parameters of G, S and the last A."""
    children, parents, dim = votes.shape
    pose = len(x[0])
    ones, zeros = np.ones(dim), np.zeros(dim)
    S, y, passes = np.zeros((children, parents)), np.zeros((parents, dim)), []
    for _ in range(iterations):
        R = np.array([softmax(row) for row in S])
        found = np.zeros((children, parents))
        for j in range(parents):
            total = np.zeros(dim)
            for i in range(children):
                used = f_a[i] * R[i, j]
                total += (beta_use[i, j] * used - beta_ign[i, j] * (f_a[i] - used)) * votes[i, j]
            y[j] = layer_norm(total, ones, zeros)
            expected = np.zeros(pose)
            for p in range(pose):
                hidden = sum(network["predict"][p, h] * y[j, h] for h in range(dim))
                expected[p] = network["predict_each"][j, p] * hidden + network["predict_bias"][j, p]
            for i in range(children):
                met = network["similarity"][i, j] * dot(x[i], expected) + network["similarity_bias"][i, j]
                found[i, j] = log(logistic(met))
        passes.append((S, R, found))
        S = found
    scores = [dot(network["presence"][j], y[j]) + network["presence_bias"][j] for j in range(parents)]
    return Routed(y, np.array([logistic(score) for score in scores]), passes)


@dataclass
class EMPass:
    """What one iteration of EM routing computed."""

    r: Array
    mean: Array
    variance: Array
    activation: Array
    log_density: Array


def route_em(
    votes: Array, a: Array, beta_u: Array, beta_a: Array, iterations: int, floor: float = 5e-4
) -> list[EMPass]:
    """Procedure 1 of Hinton, Sabour and Frosst 2018.

    A parent's data is counted in shares of what evenly assigned children would bring (Gritzman 2019).
    """
    children, parents, dim = votes.shape
    even = children / parents
    r = np.full((children, parents), 1 / parents)
    passes = []
    for t in range(iterations):
        inverse_temperature = 1 - 0.95 ** (t + 1)
        mean, variance, cost = np.zeros((parents, dim)), np.zeros((parents, dim)), np.zeros((parents, dim))
        activation = np.zeros(parents)
        for j in range(parents):
            weights = [r[i, j] * a[i] for i in range(children)]
            total = sum(weights)
            for h in range(dim):
                mean[j, h] = sum(weights[i] * votes[i, j, h] for i in range(children)) / total
                spread = sum(weights[i] * (votes[i, j, h] - mean[j, h]) ** 2 for i in range(children)) / total
                variance[j, h] = spread + floor
                cost[j, h] = (beta_u[j] + log(sqrt(variance[j, h]))) * total / even
            activation[j] = 1 / (1 + exp(-inverse_temperature * (beta_a[j] - sum(cost[j]))))
        log_density = np.zeros((children, parents))
        for i in range(children):
            for j in range(parents):
                for h in range(dim):
                    distance = (votes[i, j, h] - mean[j, h]) ** 2 / (2 * variance[j, h])
                    log_density[i, j] -= distance + 0.5 * log(2 * pi * variance[j, h])
        passes.append(EMPass(r, mean, variance, activation, log_density))
        r = np.array([softmax(np.log(activation) + log_density[i]) for i in range(children)])
    return passes


def spread_loss(activations: Array, label: int, margin: float) -> float:
    """Eq. 3 of Hinton et al. 2018, of one image."""
    return sum(
        max(0.0, margin - (activations[label] - activations[j])) ** 2 for j in range(len(activations)) if j != label
    )
