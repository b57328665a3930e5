"""The parse tree: "each active capsule will choose a capsule in the layer above to be its parent in the tree".

How much of a tree the couplings are: 1 minus their entropy over the parents, as a share of the greatest there can be,
averaged over the children in proportion to their activation. A child with one parent scores 1, one that spreads itself
evenly over all parents 0, which is also where routing starts.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps import data
from torchcaps.analysis import probes
from torchcaps.core.functional import coupling_entropy
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, judged
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import create_model
from torchcaps.viz.figures import style
from torchcaps.viz.figures.trees import Tree, parse_trees

PAPER = "Sabour, Frosst and Hinton 2017, section 1; Srihari, Capsule Networks (lecture), 'Parse tree of a fixation'"
CUT = {
    "quick": "the small networks with the weights in the package, 500 images",
    "standard": "the small networks, 2,000 steps a training, 2,000 images",
}
ACTIVE = 0.5
SHOWN = 3
BATCH = 250


TASKS = {"mnist": protocols.MNIST, "multimnist": protocols.MULTIMNIST}


def _trials(study: Study, task: str) -> list[Trial]:
    """Short presets look at the networks in the package."""
    if study.preset == "paper":
        return [Trial(task, f"capsnet-{task}", task, 0, {}, TASKS[task])]
    if study.preset != "standard":
        return []
    return [
        Trial(f"{task}-{seed}", f"capsnet-{task}-small", task, seed, {}, {"steps": 2000, "validation": 0})
        for seed in study.seeds_or(5)
    ]


def plan(study: Study) -> list[Trial]:
    return [trial for task in TASKS for trial in _trials(study, task)]


def tree_score(couplings: Float[Tensor, "b i j"], activations: Float[Tensor, "b i"]) -> Float[Tensor, "b"]:
    """How tree-like the couplings of each image are, from 0 (uniform) to 1 (one parent each).

    >>> tree_score(torch.eye(3)[None], torch.ones(1, 3))
    tensor([1.])
    """
    entropy = coupling_entropy(couplings) / math.log(couplings.shape[-1])
    return ((1 - entropy) * activations).sum(1) / activations.sum(1)


def measure(model: CapsNet, batch: data.Batch) -> dict[str, Any]:
    """Means over the images, which are looked at a few at a time: a trace stores all votes."""
    parts = [data.Batch(*part) for part in zip(*(field.split(BATCH) for field in batch), strict=True)]
    found = [_measure(model, part) for part in parts]
    weights = [len(part.images) / len(batch.images) for part in parts]

    def mean(values: list[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    scores = zip(*(part["score"] for part in found), strict=True)
    single = {name: mean([part[name] for part in found]) for name in found[0] if name != "score"}
    return {"score": [mean(list(score)) for score in scores], **single}


@torch.no_grad()
def _measure(model: CapsNet, batch: data.Batch) -> dict[str, Any]:
    output = model(batch.images, trace=True)
    assert output.trace is not None
    assert output.children is not None
    children = output.children.activations
    couplings = output.trace.couplings
    chosen = couplings[-1].argmax(-1)
    shown = (chosen.unsqueeze(2) == batch.labels.unsqueeze(1)).any(2).float()
    share = (couplings[-1].gather(2, batch.labels.unsqueeze(1).expand(-1, couplings.shape[2], -1))).sum(2)
    active = (children > ACTIVE).float()

    def weighted(values: Tensor) -> float:
        return ((values * children).sum(1) / children.sum(1)).mean().item()

    return {
        "score": [tree_score(c, children).mean().item() for c in couplings],
        "largest": weighted(couplings[-1].amax(-1)),
        "right_parent": weighted(shown),
        "right_share": weighted(share),
        "active": active.mean().item(),
    }


@torch.no_grad()
def tree(model: CapsNet, image: Float[Tensor, "c h w"]) -> Tree:
    output = model(image[None], trace=True)
    assert output.trace is not None
    assert output.children is not None
    children = output.children.activations[0]
    couplings = output.trace.couplings[-1, 0]
    seen = image if model.window is None else model.window(image[None])[0]
    return Tree(seen, children.unflatten(0, model.grid), couplings.unflatten(0, model.grid), output.lengths[0])


def _networks(study: Study, task: str) -> list[tuple[int, CapsNet, str]]:
    """Trained networks with their seeds and hashes, or the one in the package."""
    trials = _trials(study, task)
    if not trials:
        shipped = f"capsnet-{task}-small"
        return [(0, create_model(shipped, pretrained=True).eval(), PRETRAINED[shipped]["sha256"])]
    return [(trial.seed, study.model(trial), study.train(trial)["weights_sha256"]) for trial in trials]


def run(study: Study) -> list[Verdict]:
    count = study.pick(quick=500, standard=2000, paper=10_000, smoke=32)
    verdicts, trees = [], []
    study.train_all(plan(study))
    for task in TASKS:
        name = task + ("-mini" if study.preset == "smoke" else "")
        batch = probes.pick(data.load_test_set(name), range(count))
        networks = _networks(study, task)
        found = [
            study.row(
                f"{task}-{seed}-tree",
                lambda model=model, batch=batch: measure(model, batch),
                seed,
                weights=weights,
                images=count,
            )
            for seed, model, weights in networks
        ]
        trees += [tree(networks[0][1], image) for image in batch.images[:SHOWN]]
        chance = batch.labels.shape[1] / 10
        by_iteration = ", ".join(f"{score:.3f}" for score in found[0]["score"])
        share = sum(one["right_share"] for one in found) / len(found)
        verdicts += [
            judged(f"{name}: the couplings are more of a tree than not (score of at least 0.5)",
                   [one["score"][-1] for one in found], None, False, f"by iteration, seed 0: {by_iteration}", "",
                   limit=0.5),
            judged(f"{name}: at least half of the activity chooses a digit that is there as its parent",
                   [one["right_parent"] for one in found], None, False,
                   f"chance {chance:.0%}; these digits get {share:.0%} of the coupling", limit=0.5),
        ]  # fmt: skip
    with style():
        study.figure("parse-tree", parse_trees(trees, data.resolve("mnist").classes, ACTIVE))
    return verdicts
