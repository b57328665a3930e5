"""The paper's choices, each changed alone: is the network better with them than without, on overlapping digits?

Log priors that are learned (section 2), the weight λ of absent classes in the margin loss (Eq. 4), the margin loss
itself against cross entropy, the weight of the reconstruction, the dimension of class capsules, the number of types of
primary ones, and the lecture's contrast, max-pooling in place of routing by agreement: each parent listens to the one
child with the longest vote "and ignores all but the most active feature detector".

All variants see the same pairs for the same number of steps, each with its own learning rate.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.core.functional import EPSILON, length, present, squash
from torchcaps.core.types import Capsules, ModelOutput, RoutingOutput
from torchcaps.data.sets import Batch
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.nn.losses import margin_loss, reconstruction_loss
from torchcaps.routing.base import Competition, Recorder, Routing, VoteShape
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, sections 2 to 4; Srihari, Capsule Networks (lecture), 'Routing by agreement'"
CUT = {
    "quick": "the small network, 200 steps a training, 2 seeds",
    "standard": "the small network (0.8 M parameters), 650 steps a training",
}
MODEL = "capsnet-multimnist-small"
WEIGHT = 0.007
"""The weight of the reconstruction in the small networks."""
HERE = "torchcaps.experiments.ablations"


class MaxPooling(Routing):
    """Each parent takes the longest vote for it and ignores the others: `v[j] = squash(û[j|i])` of that child i."""

    leaky = True

    def __init__(self, shape: VoteShape) -> None:
        super().__init__()

    def forward(
        self,
        votes: Float[Tensor, "b i j d"],
        children: Capsules,
        *,
        competition: Competition | None = None,
        trace: bool = False,
    ) -> RoutingOutput:
        chosen = length(votes).argmax(1, keepdim=True)
        c = torch.zeros_like(votes[..., 0]).scatter(1, chosen, 1.0)
        v = squash(torch.einsum("bij,bijd->bjd", c, votes))
        recorder = Recorder(trace)
        if recorder:
            recorder.add(c, torch.zeros_like(c), torch.einsum("bijd,bjd->bij", votes, v))
        return RoutingOutput(v, length(v), recorder.trace())


def _with_reconstruction(output: ModelOutput, batch: Batch, told: Tensor) -> dict[str, Tensor]:
    assert output.reconstruction is not None
    pixels = reconstruction_loss(output.reconstruction, batch.targets)
    return {"total": told + WEIGHT * pixels, "told": told, "reconstruction": pixels}


def quarter(output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
    """The margin loss with λ = 0.25."""
    there = present(batch.labels, output.lengths.shape[1])
    return _with_reconstruction(output, batch, margin_loss(output.lengths, there, absent_weight=0.25))


def one(output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
    """The margin loss with λ = 1: absent classes count as much as present ones."""
    there = present(batch.labels, output.lengths.shape[1])
    return _with_reconstruction(output, batch, margin_loss(output.lengths, there, absent_weight=1.0))


def cross_entropy(output: ModelOutput, batch: Batch) -> dict[str, Tensor]:
    """Lengths as the probabilities that classes are there."""
    there = present(batch.labels, output.lengths.shape[1])
    kept = output.lengths.clamp(EPSILON, 1 - 1e-6)
    told = -(there * kept.log() + (1 - there) * (1 - kept).log()).sum(1).mean()
    return _with_reconstruction(output, batch, told)


@dataclass(frozen=True)
class Variant:
    """The network with one thing changed."""

    name: str
    title: str
    overrides: dict[str, Any] = field(default_factory=dict)
    loss: str | None = None


PAPERS = Variant("papers", "the paper's choices")
VARIANTS = (
    Variant("priors", "learned log priors", {"routing_options": {"iterations": 3, "learn_priors": True}}),
    Variant("max-pooling", "max-pooling instead of routing", {"routing": f"{HERE}:MaxPooling"}),
    Variant("lambda-quarter", "λ = 0.25 instead of 0.5", loss=f"{HERE}:quarter"),
    Variant("lambda-one", "λ = 1 instead of 0.5", loss=f"{HERE}:one"),
    Variant("cross-entropy", "cross entropy instead of the margin loss", loss=f"{HERE}:cross_entropy"),
    Variant("no-reconstruction", "no reconstruction", {"decoder": None}),
    Variant("light", "a tenth of the reconstruction's weight", {"reconstruction_weight": WEIGHT / 10}),
    Variant("heavy", "ten times the reconstruction's weight", {"reconstruction_weight": WEIGHT * 10}),
    Variant("dim-4", "4 dimensions instead of 16", {"dim": 4}),
    Variant("dim-32", "32 dimensions instead of 16", {"dim": 32}),
    Variant("types-2", "2 types of primary capsules instead of 4", {"primary_types": 2}),
    Variant("types-8", "8 types of primary capsules instead of 4", {"primary_types": 8}),
)


def _variants(study: Study) -> tuple[Variant, ...]:
    """A smoke test tries a routing of its own, a loss of its own, and another size."""
    return tuple(VARIANTS[n] for n in (1, 4, 8)) if study.preset == "smoke" else VARIANTS


def _groups(study: Study) -> dict[str, list[Trial]]:
    training = study.pick(
        quick={"steps": 200}, standard={"steps": 650}, paper=protocols.MULTIMNIST, smoke=protocols.SMOKE
    )
    data = "multimnist-mini" if study.preset == "smoke" else "multimnist"
    seeds = study.seeds_or(study.pick(quick=2, standard=5, paper=5, smoke=1))
    return {
        variant.name: [
            Trial(f"{variant.name}-{s}", MODEL, data, s, variant.overrides, dict(training), variant.loss) for s in seeds
        ]
        for variant in (PAPERS, *_variants(study))
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def run(study: Study) -> list[Verdict]:
    groups = search.tuned(study, _groups(study))
    study.train_all(search.by_seed(groups))
    variants = (PAPERS, *_variants(study))
    accuracy = {name: [study.train(trial)["accuracy"] for trial in trials] for name, trials in groups.items()}
    with style():
        rows = [Measured(variant.title, accuracy[variant.name]) for variant in variants]
        study.figure("ablations", dots({"overlapping digits, both right": rows}, "accuracy on test pairs"))
    rates = {name: f"learning rate {trials[0].config.lr:g}" for name, trials in groups.items()}
    return [
        *(judged(f"both digits right: {v.title}", accuracy[v.name], None, False, rates[v.name]) for v in variants),
        *(
            compared(
                f"the paper's choices are better than {v.title}, by", accuracy[PAPERS.name], accuracy[v.name], None
            )
            for v in variants[1:]
        ),
    ]
