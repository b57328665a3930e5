"""The rule that decides claims: its error rate under the null hypothesis, its power, and its edges."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from torchcaps.core.errors import UserError
from torchcaps.experiments.statistics import (
    LEVEL,
    adjusted,
    difference,
    holm,
    margin,
    mcnemar,
    seeds_needed,
    t_test,
    verdict,
)
from torchcaps.experiments.verdicts import compared, judged, settled

EXPERIMENTS = 10_000
CHANCE = 3 * math.sqrt(0.05 * 0.95 / EXPERIMENTS)
"""Three standard errors of so many simulations: 0.65 points."""


def null_data(claims: int, seeds: int, correlation: float) -> np.ndarray:
    """Differences of equally good networks, by experiment, claim and seed; what the claims share is correlated."""
    generator = np.random.default_rng(claims)
    shared = generator.normal(size=(EXPERIMENTS, 1, seeds)) * math.sqrt(correlation)
    return shared + generator.normal(size=(EXPERIMENTS, claims, seeds)) * math.sqrt(1 - correlation)


@pytest.mark.parametrize(
    ("claims", "seeds", "correlation"), [(1, 5, 0.0), (3, 5, 0.5), (6, 8, 0.0), (13, 5, 0.0), (18, 5, 0.5)]
)
def test_without_a_difference_at_most_one_experiment_in_twenty_decides(
    claims: int, seeds: int, correlation: float
) -> None:
    *_, p = t_test(null_data(claims, seeds, correlation))
    share = (holm(p) <= LEVEL).any(-1).mean()
    assert share <= 0.05 + CHANCE
    assert share > 0.02, "a rule that decides nothing would pass too"


def test_claims_that_can_only_hold_do_not_raise_the_error_rate() -> None:
    """Of claims whose budget was cut, those with the right sign are decided with the others."""
    mean, _, p = t_test(null_data(6, 5, 0.0))
    cut = np.arange(6) < 4
    together = ~cut | (mean > 0)
    smallest = np.where(together, p, 1.0).min(-1)
    share = (smallest * together.sum(-1) <= LEVEL).mean()
    assert 0.02 < share <= 0.05 + CHANCE


def test_the_rule_as_it_is_applied_is_the_one_that_was_simulated() -> None:
    data = null_data(3, 5, 0.0)[:200] + 0.8
    *_, p = t_test(data)
    expected = holm(p)
    for experiment, corrected in zip(data, expected, strict=True):
        claims = [compared(f"claim {n}", gaps.tolist(), [0.0] * 5, None) for n, gaps in enumerate(experiment)]
        found = settled(claims)
        assert [one.estimate.adjusted for one in found] == pytest.approx(corrected.tolist())
        words = ["undecided" if p > LEVEL else "holds" if gap.mean() > 0 else "refuted"
                 for p, gap in zip(corrected, experiment, strict=True)]  # fmt: skip
        assert [one.word for one in found] == words


def test_two_or_three_seeds_never_decide() -> None:
    for n in (1, 2, 3, 4):
        assert verdict(difference([1.0 + 1e-9 * k for k in range(n)], [0.0] * n)) == "undecided"


def test_a_clear_difference_is_found_and_its_sign_counts() -> None:
    ahead, behind = [0.95, 0.96, 0.955, 0.951, 0.958], [0.93, 0.935, 0.94, 0.931, 0.936]
    assert verdict(difference(ahead, behind)) == "holds"
    assert verdict(difference(behind, ahead)) == "refuted"
    assert verdict(difference(ahead, behind), cut="300 of 300,000 steps") == "not tested"


def test_a_number_can_be_reached_but_not_refuted_by_a_budget_that_was_cut() -> None:
    good, bad = [0.0020, 0.0021, 0.0019, 0.0022, 0.0020], [0.0040, 0.0041, 0.0039, 0.0042, 0.0040]
    words = [
        settled([judged("error", values, 0.0025, at_most=True, cut=cut)])[0].word
        for cut in ("", "fewer steps")
        for values in (good, bad)
    ]
    assert words == ["holds", "refuted", "holds", "not tested"]
    (gap,) = settled([compared("less", bad, good, None)], cut="quick budget")
    assert (gap.word, gap.reason) == ("not tested", "quick budget")


def test_what_is_undecided_says_what_it_would_take() -> None:
    noisy = settled([compared("better", [0.9, 0.8, 0.95, 0.7, 0.9], [0.8, 0.9, 0.9, 0.6, 0.8], None)])[0]
    needed = seeds_needed(noisy.estimate)
    assert noisy.word == "undecided"
    assert needed > 5
    assert f"about {needed} seeds" in noisy.reason
    few = settled([compared("better", [0.9, 0.8], [0.5, 0.4], None)])[0]
    assert (few.word, few.reason) == ("undecided", "2 of the 5 seeds that a decision takes")
    kept = few.as_json()
    assert {"claim", "ours", "spread", "seeds", "verdict", "reason", "interval", "p", "test"} <= kept.keys()
    assert settled([judged("error", [0.1], None, at_most=True)])[0].as_json()["verdict"] == "measured"


def test_seeds_that_are_needed_allow_for_the_other_claims() -> None:
    alone = difference([0.93, 0.92, 0.95, 0.92, 0.94], [0.91, 0.92, 0.92, 0.91, 0.92])
    assert alone.decided
    assert seeds_needed(alone) <= 7
    among = replace(alone, adjusted=10 * alone.p)
    assert not among.decided
    assert seeds_needed(among) > max(5, seeds_needed(alone)), "more than were not enough"


def test_estimates_are_those_of_scipy() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=7), generator.normal(size=7)
    found, expected = difference(a.tolist(), b.tolist()), stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert (found.p, found.low, found.high) == pytest.approx((expected.pvalue, interval.low, interval.high))
    assert found.mean == pytest.approx((a - b).mean())


def test_noise_does_not_help_a_number_to_hold() -> None:
    """Both miss 99.2 %: the precise one is refuted, the noisy one undecided, neither holds."""
    noisy = [0.9919 + 0.0018 * x for x in (-1.3, -0.4, 0.1, 0.5, 1.1)]
    precise = [0.9906 + 0.0004 * x for x in (-1.3, -0.4, 0.1, 0.5, 1.1)]
    assert verdict(margin(noisy, 0.992, at_most=False)) == "undecided"
    assert verdict(margin(precise, 0.992, at_most=False)) == "refuted"
    assert verdict(margin([0.0020, 0.0021, 0.0019, 0.0022, 0.0020], 0.0025, at_most=True)) == "holds"


def test_mcnemar_counts_only_where_they_differ() -> None:
    both = [True] * 900
    ahead, behind = both + [True] * 30 + [False] * 10, both + [False] * 30 + [True] * 10
    found = mcnemar(ahead, behind)
    assert found.n == 40
    assert found.p == pytest.approx(stats.binomtest(30, 40).pvalue)
    assert found.mean == pytest.approx(20 / 940)
    assert 0 < found.low < found.mean < found.high
    assert verdict(found) == "holds"
    assert verdict(mcnemar(both, both)) == "undecided"


def test_mcnemars_error_rate_under_the_null() -> None:
    generator = np.random.default_rng(1)
    wrong = 0
    for differ in generator.integers(20, 200, size=500):
        ahead = generator.random(differ) < 0.5
        wrong += verdict(mcnemar(ahead.tolist(), (~ahead).tolist())) != "undecided"
    assert wrong / 500 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)


def test_holm_keeps_the_order_and_never_exceeds_one() -> None:
    estimates = [margin([value, value + 1, value + 2, value - 1, value - 2], 0, False) for value in (0.0, 3.0, 1.0)]
    corrected = [estimate.adjusted for estimate in adjusted(estimates)]
    assert corrected[1] == pytest.approx(3 * estimates[1].p)
    assert corrected[0] == 1.0
    assert corrected[1] <= corrected[2] <= corrected[0]


def test_values_without_a_pair_are_refused() -> None:
    with pytest.raises(UserError, match="3 values on one side, 2"):
        difference([1, 2, 3], [1, 2])
    with pytest.raises(UserError, match="no values"):
        margin([], 0.5, at_most=True)
