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
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

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
    order = sorted(range(len(estimates)), key=lambda index: estimates[index].p)
    corrected, running = [0.0] * len(estimates), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(estimates) - rank) * estimates[index].p))
        corrected[index] = running
    return [replace(estimate, adjusted=p) for estimate, p in zip(estimates, corrected, strict=True)]


def verdict(estimate: Estimate, cut: str = "") -> Word:
    """What the estimate says about its claim; `cut` names what the budget lacks, if it was cut too short."""
    if cut:
        return "not tested"
    if not estimate.decided:
        return "undecided"
    return "holds" if estimate.mean > 0 else "refuted"


def _t_estimate(values: Sequence[float], test: Literal["paired t", "t"]) -> Estimate:
    n = len(values)
    if not n:
        raise UserError("there are no values to estimate from")
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, 1.0, 1, test)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    if error == 0:
        # All seeds agree to the last digit: certain, unless there is nothing to see.
        return Estimate(mean, mean, mean, 1.0 if mean == 0 else 0.0, n, test)
    half = error * float(special.stdtrit(n - 1, 1 - LEVEL / 2))
    p = 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    return Estimate(mean, mean - half, mean + half, p, n, test)
