"""The rule that decides a claim: estimates with 95 % intervals, p-values, and four verdicts.

A comparison of two networks is paired over seeds: the same seed gives both the same images in the same order, and what
is tested is the mean of the differences (two-sided t-test). For one trained pair, McNemar's exact test compares the
answers to the shared test images. A single number is held against the paper's by its interval over seeds.

An experiment makes several claims at once, so its p-values are adjusted (Holm 1979): under the null hypothesis the
chance of even one wrong decision in an experiment is at most 5 %.

    holds        the adjusted p is at most 0.05, and the sign is the claim's
    refuted      the same with the opposite sign, at a budget that could have shown the claim
    undecided    neither; more seeds would be needed, or there is no difference to find
    not tested   the budget was cut below what the claim needs, and the reason says to what

A number that a smaller network reaches with less training is reached: a claim about a single number can also hold at a
budget that was cut, but not be refuted by it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy import special, stats

from torchcaps.core.errors import UserError

LEVEL = 0.05
FEWEST_SEEDS = 5
"""Fewer pairs are estimated but not decided: the t-test leans on a deviation that so few values hardly show."""
Word = Literal["holds", "refuted", "undecided", "not tested"]


@dataclass(frozen=True)
class Estimate:
    """A number with what is known about it. Positive means that the claim's side is ahead."""

    mean: float
    low: float
    high: float
    p: float
    n: int
    """Seeds, or test images on which two networks differ."""
    test: Literal["paired t", "t", "McNemar"]
    adjusted: float | None = None
    """p after the correction for the other claims of the experiment."""

    @property
    def enough(self) -> bool:
        return self.test == "McNemar" or self.n >= FEWEST_SEEDS

    @property
    def decided(self) -> bool:
        return self.enough and (self.p if self.adjusted is None else self.adjusted) <= LEVEL


def difference(ahead: Sequence[float], behind: Sequence[float]) -> Estimate:
    """Of two networks, seed by seed: `ahead` is the one that the claim favours."""
    if len(ahead) != len(behind):
        raise UserError(f"pairs are needed: {len(ahead)} values on one side, {len(behind)} on the other")
    return _t_estimate([a - b for a, b in zip(ahead, behind, strict=True)], "paired t")


def margin(values: Sequence[float], wanted: float, at_most: bool) -> Estimate:
    """By how much a number is better than the one that is wanted; `at_most` is for errors, where less is better."""
    return _t_estimate([wanted - value if at_most else value - wanted for value in values], "t")


def mcnemar(ahead: Sequence[bool], behind: Sequence[bool]) -> Estimate:
    """Two networks on the same test images: which of them were right.

    Under the null hypothesis an image on which just one is right is as often the one's as the other's (exact binomial
    test). The interval is that of the share of such images (Clopper and Pearson), scaled to accuracies.
    """
    if len(ahead) != len(behind) or not len(ahead):
        raise UserError(f"the same images are needed: {len(ahead)} answers on one side, {len(behind)} on the other")
    won = sum(a and not b for a, b in zip(ahead, behind, strict=True))
    lost = sum(b and not a for a, b in zip(ahead, behind, strict=True))
    differ, images = won + lost, len(ahead)
    if not differ:
        return Estimate(0.0, 0.0, 0.0, 1.0, 0, "McNemar")
    result = stats.binomtest(won, differ)
    low, high = ((2 * share - 1) * differ / images for share in result.proportion_ci(1 - LEVEL))
    return Estimate((won - lost) / images, low, high, float(result.pvalue), differ, "McNemar")


def adjusted(estimates: Sequence[Estimate]) -> list[Estimate]:
    """The estimates of all claims of one experiment, with Holm's correction of their p-values."""
    corrected = holm(np.array([estimate.p for estimate in estimates]))
    return [replace(estimate, adjusted=float(p)) for estimate, p in zip(estimates, corrected, strict=True)]


def holm(p: Float[np.ndarray, "*experiments claims"]) -> Float[np.ndarray, "*experiments claims"]:
    """The smallest level at which each claim is decided, if all claims along the last axis are to be decided together.

    >>> holm(np.array([0.04, 0.01, 0.02])).tolist()
    [0.04, 0.03, 0.04]
    """
    order = p.argsort(-1)
    factors = np.arange(p.shape[-1], 0, -1)
    steps = np.minimum(1.0, np.maximum.accumulate(factors * np.take_along_axis(p, order, -1), -1))
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, steps, -1)
    return corrected


def verdict(estimate: Estimate, cut: str = "", reachable: bool = False) -> Word:
    """What the estimate says about its claim.

    `cut` names what the budget lacks, if it was cut too short. `reachable` is for claims that hold nevertheless where
    the number is reached.
    """
    found = "undecided" if not estimate.decided else "holds" if estimate.mean > 0 else "refuted"
    return "not tested" if cut and not (reachable and found == "holds") else found


def seeds_needed(estimate: Estimate) -> int | None:
    """About how many seeds would show a difference of the size seen, four times in five; None if there is none.

    The level is the one that the correction for the experiment's other claims leaves for this one.
    """
    if estimate.test == "McNemar" or not estimate.mean or not math.isfinite(estimate.high):
        return None
    error = (estimate.high - estimate.mean) / float(special.stdtrit(estimate.n - 1, 1 - LEVEL / 2))
    level = LEVEL if not estimate.adjusted else LEVEL * estimate.p / estimate.adjusted
    size = abs(estimate.mean) / (error * math.sqrt(estimate.n)) if error else math.inf
    # With normal quantiles it would be so many; those of the t distribution are larger the fewer seeds there are.
    needed = max(FEWEST_SEEDS, math.ceil(((special.ndtri(1 - level / 2) + special.ndtri(0.8)) / size) ** 2))
    while math.sqrt(needed) * size < special.stdtrit(needed - 1, 1 - level / 2) + special.stdtrit(needed - 1, 0.8):
        needed += 1
    return needed


def t_test(
    values: Float[np.ndarray, "*experiments seeds"],
) -> tuple[Float[np.ndarray, "*experiments"], Float[np.ndarray, "*experiments"], Float[np.ndarray, "*experiments"]]:
    """Mean, half the width of its 95 % interval, and the two-sided p of a mean of 0, along the last axis."""
    n = values.shape[-1]
    mean, error = values.mean(-1), values.std(-1, ddof=1) / math.sqrt(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * special.stdtr(n - 1, -np.abs(mean) / error)
    # All seeds agree to the last digit: certain, unless there is nothing to see.
    p = np.where(error > 0, p, np.where(mean == 0, 1.0, 0.0))
    return mean, error * special.stdtrit(n - 1, 1 - LEVEL / 2), p


def _t_estimate(values: Sequence[float], test: Literal["paired t", "t"]) -> Estimate:
    n = len(values)
    if not n:
        raise UserError("there are no values to estimate from")
    if n == 1:
        return Estimate(float(values[0]), -math.inf, math.inf, 1.0, 1, test)
    mean, half, p = (float(number[0]) for number in t_test(np.array([values], dtype=np.float64)))
    return Estimate(mean, mean - half, mean + half, p, n, test)
