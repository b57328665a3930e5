"""Claims and what is said about them; `statistics.py` has the rule.

    judged("CapsNet, MNIST error", errors, paper=0.0025, at_most=True)     a number against the paper's
    compared("CapsNet errs less than the CNN, by", cnn, capsnet, None)     two networks, seed by seed
    paired("the ensemble is right more often, by", ensemble, member)       two networks, image by image

`settled` corrects the p-values for the number of claims of the experiment, and only then is there a verdict.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchcaps.experiments.statistics import (
    FEWEST_SEEDS,
    Estimate,
    adjusted,
    difference,
    margin,
    mcnemar,
    seeds_needed,
    verdict,
)

Unit = Literal["%", ""]
WORDS = ("holds", "refuted", "undecided", "not tested")


@dataclass(frozen=True)
class Verdict:
    """A claim, the paper's number and ours. Without an estimate it is only a number: nothing is claimed about it."""

    claim: str
    paper: float | None
    ours: float
    spread: float | None
    seeds: int
    estimate: Estimate | None = None
    note: str = ""
    unit: Unit = "%"
    cut: str = ""
    """What the budget lacks for this claim; empty where it could show it."""
    reachable: bool = False
    """Whether the claim holds also at a budget that was cut, if its number is reached."""

    @property
    def word(self) -> str:
        return "measured" if self.estimate is None else verdict(self.estimate, self.cut, self.reachable)

    @property
    def can_decide(self) -> bool:
        """Whether it is one of the claims that are decided together."""
        found = self.estimate
        return found is not None and found.enough and (not self.cut or (self.reachable and found.mean > 0))

    @property
    def reason(self) -> str:
        """Why it neither holds nor is refuted, and what it would take."""
        if self.estimate is None or self.word in ("holds", "refuted"):
            return ""
        if self.cut:
            return self.cut
        if not self.estimate.enough:
            return f"{self.seeds} of the {FEWEST_SEEDS} seeds that a decision takes"
        needed = seeds_needed(self.estimate)
        return f"a difference of this size would take about {needed:,} seeds" if needed else "no difference was seen"

    def as_json(self) -> dict[str, Any]:
        kept: dict[str, Any] = {
            "claim": self.claim, "paper": self.paper, "ours": self.ours, "spread": self.spread, "seeds": self.seeds,
            "verdict": self.word, "reason": self.reason, "note": self.note, "unit": self.unit,
        }  # fmt: skip
        if (found := self.estimate) is None:
            return kept
        ends = None if found.n == 1 and found.test != "McNemar" else self._interval(found)
        p = found.p if found.adjusted is None else found.adjusted
        return kept | {"interval": ends, "p": p, "p_alone": found.p, "test": found.test}

    def _interval(self, found: Estimate) -> list[float]:
        """Of our number itself, not of its distance from the one that is claimed."""
        if found.test != "t":
            return [found.low, found.high]
        half = (found.high - found.low) / 2
        return [self.ours - half, self.ours + half]


def settled(verdicts: Sequence[Verdict], cut: str = "") -> list[Verdict]:
    """The verdicts of one experiment with their p-values corrected; `cut` is what the budget lacks for all claims."""
    stated = [replace(one, cut=one.cut or cut) if one.estimate else one for one in verdicts]
    together = [one.estimate for one in stated if one.can_decide and one.estimate]
    corrected = iter(adjusted(together) if together else [])
    return [replace(one, estimate=next(corrected)) if one.can_decide else one for one in stated]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The spread is the sample's standard deviation; of one value there is none."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def judged(
    claim: str,
    values: Sequence[float],
    paper: float | None,
    at_most: bool,
    note: str = "",
    unit: Unit = "%",
    limit: float | None = None,
    cut: str = "",
) -> Verdict:
    """Our number against the paper's: it holds if the interval over seeds is on the good side of it.

    `at_most` is for errors, where less is better. Where the paper has no number, the claim may name a `limit` of its
    own; without either the number is only measured.
    """
    mean, spread = mean_and_spread(values)
    wanted = paper if limit is None else limit
    estimate = None if wanted is None else margin(values, wanted, at_most)
    return Verdict(claim, paper, mean, spread, len(values), estimate, note, unit, cut, reachable=True)


def compared(
    claim: str,
    better: Sequence[float],
    worse: Sequence[float],
    paper: float | None,
    note: str = "",
    unit: Unit = "%",
    cut: str = "",
) -> Verdict:
    """The claim that one score exceeds another, seed by seed."""
    estimate = difference(better, worse)
    _, spread = mean_and_spread([a - b for a, b in zip(better, worse, strict=True)])
    return Verdict(claim, paper, estimate.mean, spread, estimate.n, estimate, note, unit, cut)


def paired(claim: str, better: Sequence[bool], worse: Sequence[bool], note: str = "", cut: str = "") -> Verdict:
    """The claim that one network is right more often than another on the same test images, of one trained pair."""
    estimate = mcnemar(better, worse)
    return Verdict(claim, None, estimate.mean, None, 1, estimate, note, cut=cut)
