"""Section 5.2: networks trained on translated digits are tested on affinely transformed ones.

The paper compares the two networks where both have 99.2 % on translated digits, so that neither has learned its own
task better. Here both accuracies are looked at all along each training, on held-out translated digits and on affine
ones, and the second is read off where the first has come to 99.2 %: no training is stopped by a lucky look.
"""

from functools import lru_cache, partial

import torch
from torch import nn

from torchcaps.analysis.evaluate import evaluate
from torchcaps.data import ImageSet, ScoredSet, load_test_set, resolve
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.looks import Look, curves_of_looks, looks_along, novel_at
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.training.scoring import score
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, section 5.2"
CUT = {
    "quick": "small networks of like cost on the same 40x40 images, 1,400 steps",
    "standard": "small networks (1.0 M parameters) stand for the paper's, on the same 40x40 images: 2,600 steps, "
    "of the CNN with max-pooling 5,200",
}
CAPSNET, CNN, BACKBONE = "CapsNet", "CNN with max-pooling and dropout", "CNN of the CapsNet's backbone"
PUBLISHED = {CAPSNET: (0.9923, 0.79), CNN: (0.9922, 0.66)}
TARGET = {"quick": 0.992, "standard": 0.992, "paper": 0.992, "smoke": 0.3}
HELD_OUT, ASKED = 2000, 1000
"""Translated digits that are kept back from training, and affine ones, at each look."""
SMALLER = "the paper's number is for 13.4 M parameters, ours for 1.0 M"


def _groups(study: Study) -> dict[str, list[Trial]]:
    large = {} if study.preset == "smoke" else {"image": (1, 40, 40)}
    small = {
        CAPSNET: ("capsnet-mnist-small", large),
        CNN: ("cnn-affnist-small", {} if large else {"image": (1, 28, 28)}),
        BACKBONE: ("cnn-mnist-small", large),
    }
    papers = {CAPSNET: ("capsnet-affnist", {}), CNN: ("cnn-affnist", {})}
    training = study.pick(
        quick={"steps": 1400, "validation": HELD_OUT},
        standard={"steps": 2600, "validation": HELD_OUT},
        paper={"epochs": 100.0, "validation": 5000},
        smoke=protocols.SMOKE,
    )
    data = "mnist-mini" if study.preset == "smoke" else "translated-mnist"
    models = study.pick(quick=small, standard=small, paper=papers, smoke=small)
    # After 2,600 steps two of five CNNs with max-pooling and dropout had not come to 99.2 % on translated digits.
    longer = study.pick(quick={}, standard={CNN: {"steps": 5200}}, paper={}, smoke={})
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=1, smoke=1))
    return {
        kind: [
            Trial(f"{model}-{s}", model, data, s, dict(overrides), {**training, **longer.get(kind, {})}) for s in seeds
        ]
        for kind, (model, overrides) in models.items()
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def _asked(study: Study) -> str:
    return "mnist-mini" if study.preset == "smoke" else study.data("affnist", stand_in="affnist-style")


@lru_cache(maxsize=4)
def _looked_at(name: str, held_out: int | None) -> ScoredSet:
    """The digits that a training keeps back, laid out as test digits are; or the first affine test digits."""
    known = resolve(name)
    if held_out is not None:
        return known.scored(known.training_and_validation(held_out)[1])
    images: ImageSet = known.images("test")
    return known.scored(images.take(torch.arange(min(ASKED, len(images)))))


def _probe(trial: Trial, asked: str, model: nn.Module) -> dict[str, float]:
    sets = {"familiar": _looked_at(trial.data, trial.config.validation), "novel": _looked_at(asked, None)}
    return {name: score(model, part)["accuracy"] for name, part in sets.items()}


def _watch(study: Study, asked: str, trial: Trial) -> list[Look]:
    study.train(trial, partial(_probe, trial, asked))
    return looks_along(study.metrics(trial))


def run(study: Study) -> list[Verdict]:
    asked = _asked(study)
    groups = search.tuned(study, _groups(study))
    study.at_once(partial(_watch, study, asked), search.by_seed(groups))
    looks = {kind: [_watch(study, asked, trial) for trial in trials] for kind, trials in groups.items()}
    results = {kind: [study.train(trial) for trial in trials] for kind, trials in groups.items()}
    affine = {
        kind: [
            _affine(study, trial, result["weights_sha256"], asked)
            for trial, result in zip(trials, results[kind], strict=True)
        ]
        for kind, trials in groups.items()
    }
    with style():
        panels = {
            "translated MNIST (what they were trained on)": [
                Measured(kind, [result["accuracy"] for result in found], PUBLISHED.get(kind, (None,))[0])
                for kind, found in results.items()
            ],
            f"{asked} (never seen)": [
                Measured(kind, found, PUBLISHED.get(kind, (0, None))[1]) for kind, found in affine.items()
            ],
        }
        study.figure("affnist", dots(panels, "accuracy at the end"))
        study.figure("curves", curves_of_looks(looks, "", "error on translated digits", "error on affine ones"))
    stand_in = "" if asked == "affnist" else f"{asked} is a stand-in, not the paper's set"
    cut = study.pick(quick="", standard=SMALLER, paper="", smoke="")
    ends = [
        verdict
        for kind, found in results.items()
        for verdict in _at_the_end(kind, asked, found, affine[kind], stand_in, cut)
    ]
    others = [kind for kind in groups if kind != CAPSNET]
    return [*ends, *(_compared(study, asked, other, looks, results, stand_in) for other in others)]


def _at_the_end(
    kind: str, asked: str, results: list[dict], affine: list[float], stand_in: str, cut: str
) -> list[Verdict]:
    own, theirs = PUBLISHED.get(kind, (None, None))
    size = f"{results[0]['parameters'] / 1e6:.1f} M parameters, {results[0]['steps']:,} steps"
    return [
        judged(f"{kind}, translated MNIST", [r["accuracy"] for r in results], own, False, size, cut=cut),
        # On a stand-in the paper's numbers are no measure.
        judged(f"{kind}, {asked}", affine, None if stand_in else theirs, False, stand_in, cut=cut),
    ]


def _compared(
    study: Study,
    asked: str,
    other: str,
    looks: dict[str, list[list[Look]]],
    results: dict[str, list[dict]],
    stand_in: str,
) -> Verdict:
    """At the same accuracy on held-out translated digits: the paper's, or the best that both of a pair reach.

    Whether a network comes to the paper's is read off the 10,000 test digits: of 2,000 held-out ones the standard error
    is 0.2 points.
    """
    target = 1 - TARGET[study.preset]
    pairs = list(zip(looks[CAPSNET], looks[other], strict=True))
    levels = [max(target, *(min(look.familiar for look in one) for one in pair)) for pair in pairs]
    ours, theirs = (
        [1 - novel_at(pair[side], level) for pair, level in zip(pairs, levels, strict=True)] for side in (0, 1)
    )
    ends = zip(results[CAPSNET], results[other], strict=True)
    missed = sum(min(result["accuracy"] for result in pair) < 1 - target for pair in ends)
    reason = (
        f"in {missed} of {len(pairs)} pairs one network has less than {1 - target:.1%} of the translated test digits"
    )
    gap = PUBLISHED[CAPSNET][1] - PUBLISHED[other][1] if other in PUBLISHED else None
    sizes = ", ".join(f"{kind} {results[kind][0]['parameters'] / 1e6:.1f} M" for kind in (CAPSNET, other))
    note = f"{sum(ours) / len(ours):.1%} against {sum(theirs) / len(theirs):.1%}; parameters: {sizes}"
    return compared(
        f"{asked}, where both have {1 - target:.1%} of held-out translated digits, or the most that both come to: the "
        f"CapsNet is ahead of the {other}, by",
        ours,
        theirs,
        gap,
        "; ".join(filter(None, (note, stand_in))),
        cut=reason if missed else "",
    )


def _affine(study: Study, trial: Trial, weights: str, data: str) -> float:
    """The accuracy on all transformed digits at the end of training."""
    scores = study.row(
        f"{trial.name}-{data}",
        lambda: evaluate(study.model(trial), load_test_set(data)),
        trial.seed,
        weights=weights,
        data=data,
    )
    return scores["accuracy"]
