"""The rule that decides claims: its error rate under the null hypothesis, its power, and its edges."""

import math

import numpy as np
import pytest
from scipy import stats

from torchcaps.core.errors import UserError
from torchcaps.experiments.statistics import adjusted, difference, margin, mcnemar, verdict

EXPERIMENTS = 10_000


def decided_share(claims: int, seeds: int, correlation: float, generator: np.random.Generator) -> float:
    """Experiments in which at least one claim is decided although both networks are equally good."""
    shared = generator.normal(size=(EXPERIMENTS, 1, seeds, 1)) * math.sqrt(correlation)
    scores = shared + generator.normal(size=(EXPERIMENTS, claims, seeds, 2)) * math.sqrt(1 - correlation)
    wrong = 0
    for experiment in scores:
        estimates = adjusted([difference(claim[:, 0].tolist(), claim[:, 1].tolist()) for claim in experiment])
        wrong += any(verdict(estimate) != "undecided" for estimate in estimates)
    return wrong / len(scores)


@pytest.mark.parametrize(("claims", "seeds", "correlation"), [(1, 5, 0.0), (3, 5, 0.5), (6, 8, 0.0)])
def test_without_a_difference_at_most_one_experiment_in_twenty_decides(
    claims: int, seeds: int, correlation: float
) -> None:
    """Three standard errors of 10,000 simulations are 0.65 points."""
    share = decided_share(claims, seeds, correlation, np.random.default_rng(claims))
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / EXPERIMENTS)
    assert share > 0.02, "a rule that decides nothing would pass too"


def test_two_or_three_seeds_never_decide() -> None:
    for n in (1, 2, 3, 4):
        assert verdict(difference([1.0 + 1e-9 * k for k in range(n)], [0.0] * n)) == "undecided"


def test_a_clear_difference_is_found_and_its_sign_counts() -> None:
    ahead, behind = [0.95, 0.96, 0.955, 0.951, 0.958], [0.93, 0.935, 0.94, 0.931, 0.936]
    assert verdict(difference(ahead, behind)) == "holds"
    assert verdict(difference(behind, ahead)) == "refuted"
    assert verdict(difference(ahead, behind), cut="300 of 300,000 steps") == "not tested"


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
