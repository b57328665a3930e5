"""Section 7, CIFAR-10: an ensemble of capsule networks on 24x24 crops; the routing has a "none of the above" class.

"We also found that it helped to introduce a 'none-of-the-above' category for the routing softmaxes, since we do not
expect the final layer of ten capsules to explain everything in the image." Networks with and without it are compared
seed by seed, and it is measured whether more of a child's coupling goes there where more of the image is clutter:
patches of other images, pasted along the border.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.analysis import probes
from torchcaps.data import ScoredSet, load_test_set
from torchcaps.data.sets import generator_for
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.fig_a2 import small_cifar
from torchcaps.experiments.verdicts import Verdict, compared, judged, paired
from torchcaps.models.capsnet import CapsNet
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, section 7"
CUT = {
    "quick": "an ensemble of 2 small networks, 800 steps a training",
    "standard": "small networks (0.6 M parameters) stand for the paper's, 5,000 steps instead of some 600,000",
}
PUBLISHED, NETWORKS = 0.106, 7
LEAKY, PLAIN = "none of the above", "without it"
MIRRORED = {"flip": True}
CLUTTERED = 1000
PATCH = 8
"""Images that are cluttered, and the side of a pasted patch."""


def _groups(study: Study) -> dict[str, list[Trial]]:
    training = study.pick(
        quick={"steps": 800, "augment": MIRRORED},
        standard={"steps": 5000, "validation": 0, "augment": MIRRORED},
        paper=protocols.CIFAR,
        smoke=protocols.SMOKE,
    )
    networks = range(study.trials or study.pick(quick=2, standard=NETWORKS, paper=NETWORKS, smoke=2))
    groups = {}
    for kind, name in {LEAKY: "capsnet", PLAIN: "plain"}.items():
        if kind == PLAIN and study.preset == "paper":
            continue
        model, data, overrides = small_cifar(study, leaky=kind == LEAKY)
        groups[kind] = [Trial(f"{name}-{s}", model, data, s, overrides, dict(training)) for s in networks]
    return groups


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def cluttered(images: Float[Tensor, "n c h w"], seed: int = 0) -> Float[Tensor, "n c h w"]:
    """With a patch of the next image in each corner."""
    generator, side = generator_for(seed, len(images)), images.shape[-1]
    others, spoilt = images.roll(1, 0), images.clone()
    for y in (0, side - PATCH):
        for x in (0, side - PATCH):
            top, left = torch.randint(side - PATCH + 1, (2,), generator=generator).tolist()
            spoilt[:, :, y : y + PATCH, x : x + PATCH] = others[:, :, top : top + PATCH, left : left + PATCH]
    return spoilt


@torch.no_grad()
def orphaned(model: CapsNet, images: Float[Tensor, "n c h w"]) -> float:
    """The mean share of a child's coupling that goes to none of the classes, in proportion to the activations."""
    shares, weights = 0.0, 0.0
    for block in images.split(250):
        output = model(block, trace=True)
        assert output.trace is not None
        assert output.children is not None
        active = output.children.activations
        shares += float(((1 - output.trace.couplings[-1].sum(-1)) * active).sum())
        weights += float(active.sum())
    return shares / weights


def _clutter(study: Study, trial: Trial, weights: str) -> dict[str, float]:
    def compute() -> dict[str, float]:
        model = study.model(trial)
        assert isinstance(model, CapsNet)
        images = next(load_test_set(trial.data).batches(CLUTTERED)).images
        return {"clean": orphaned(model, images), "cluttered": orphaned(model, cluttered(images))}

    return study.row(f"{trial.name}-orphaned", compute, trial.seed, weights=weights)


def _answers(study: Study, trials: list[Trial], test: ScoredSet) -> tuple[list[bool], list[list[bool]]]:
    """Which test images the ensemble gets right, and which each of its networks."""
    answers = [probes.answer(study.model(trial), test) for trial in trials]
    together = probes.Answers(torch.stack([a.lengths for a in answers]).mean(0), answers[0].labels)
    return (together.hits == 1).tolist(), [(a.hits == 1).tolist() for a in answers]


def run(study: Study) -> list[Verdict]:
    groups = search.tuned(study, _groups(study))
    study.train_all(search.by_seed(groups))
    results = {kind: [study.train(trial) for trial in trials] for kind, trials in groups.items()}
    errors = {kind: [1 - result["accuracy"] for result in found] for kind, found in results.items()}
    trials, weights = groups[LEAKY], [result["weights_sha256"] for result in results[LEAKY]]

    def ensemble() -> dict[str, list]:
        right, each = _answers(study, trials, load_test_set(trials[0].data))
        return {"right": right, "best": max(each, key=sum)}

    found = study.row("ensemble", ensemble, weights=weights)
    error, clutter = 1 - sum(found["right"]) / len(found["right"]), [
        _clutter(study, trial, digest) for trial, digest in zip(trials, weights, strict=True)
    ]  # fmt: skip
    with style():
        rows = [Measured(f"ensemble of {len(trials)}", [error], PUBLISHED)]
        rows += [Measured(f"one network, {kind}", errors[kind]) for kind in errors]
        study.figure("cifar10", dots({"CIFAR-10": rows}, "test error"))
    smaller = study.pick(quick="", standard="0.6 M parameters and 5,000 steps of some 600,000", paper="", smoke="")
    verdicts = [
        judged(f"error of the ensemble of {len(trials)} (paper: {NETWORKS})", [error], PUBLISHED, True, cut=smaller),
        *(judged(f"error of one network, {kind}", errors[kind], None, at_most=True) for kind in errors),
        paired("the ensemble is right more often than the best of its networks, by", found["right"], found["best"]),
        compared(
            "clutter raises the share of the coupling that goes to none of the above, by",
            [one["cluttered"] for one in clutter],
            [one["clean"] for one in clutter],
            None,
            f"{clutter[0]['clean']:.1%} without clutter, seed 0; equal shares would be {1 / 11:.1%}",
        ),
    ]
    if PLAIN in errors:
        verdicts.append(
            compared("none of the above lowers the error of one network, by", errors[PLAIN], errors[LEAKY], None)
        )
    return verdicts
