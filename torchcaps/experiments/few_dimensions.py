"""The lecture's capsules of few dimensions, and its plot of the margin loss.

A capsule of two dimensions: the length of its vector is the probability that there is a 7, its direction is how the 7
is turned; while the 7 turns, the length stays and the vector turns. The network is trained on digits that are turned by
up to 30 degrees and is asked about sevens of the test set: how much of its length does the vector keep, and how well is
its direction a straight line in the angle of the digit (R², averaged over digits)?

A capsule of four dimensions that hold size and stroke width: trained on digits of different sizes whose strokes are
sometimes a pixel wider or narrower. Both are read off its vector linearly, class by class, on other digits than the
readout was fitted on (R²).
"""

from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.analysis import probes
from torchcaps.data import ImageSet
from torchcaps.data import images as read_images
from torchcaps.data.sets import to_float
from torchcaps.data.transforms import narrower, wider
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.equivariance import describe, moved, readout
from torchcaps.experiments.fig4 import names_of, shape_of
from torchcaps.experiments.verdicts import Verdict, judged
from torchcaps.models.capsnet import CapsNet
from torchcaps.nn.losses import margin_loss
from torchcaps.viz.figures import Curve, curves, perturbations, style
from torchcaps.viz.figures.style import WIDTH

PAPER = "Srihari, Capsule Networks (lecture), 'Example of capsule and output vector', 'Margin loss'"
CUT = {
    "quick": "the small network, 300 steps a training, one seed",
    "standard": "the small network, 2,500 steps a training",
}
SEVEN = 7
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "2-D": (2, {"rotation": 30.0}),
    "4-D": (4, {"scale": 0.25, "strokes": 0.5}),
}
SHOWN = 12


def _groups(study: Study) -> dict[str, list[Trial]]:
    training = study.pick(
        quick={"steps": 300}, standard={"steps": 2500, "validation": 0}, paper=protocols.MNIST, smoke=protocols.SMOKE
    )
    model = "capsnet-mnist" + ("" if study.preset == "paper" else "-small")
    data = "mnist-mini" if study.preset == "smoke" else "mnist"
    seeds = study.seeds_or(study.pick(quick=1, standard=5, paper=1, smoke=1))
    return {
        kind: [
            Trial(f"{kind.lower()}-{s}", model, data, s, {"dim": dim}, {**training, "augment": augment}) for s in seeds
        ]
        for kind, (dim, augment) in KINDS.items()
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def turning(model: CapsNet, sevens: Float[Tensor, "n c h w"]) -> tuple[Tensor, Tensor, Tensor]:
    """The angles that sevens are turned by, and lengths [s n] and vectors [s n 2] of their capsule."""
    values, frames = moved(sevens, "rotation")
    labels = torch.full((len(sevens),), SEVEN)
    answers = [describe(model, frame, labels) for frame in frames]
    return values, torch.stack([a for a, _ in answers]), torch.stack([v for _, v in answers])


def directions(vectors: Float[Tensor, "s n 2"]) -> Float[Tensor, "s n"]:
    """The direction of each vector in radians, without jumps by a whole turn along the way."""
    angle = torch.atan2(vectors[..., 1], vectors[..., 0])
    steps = (angle.diff(dim=0) + torch.pi) % (2 * torch.pi) - torch.pi
    return torch.cat([angle[:1], angle[:1] + steps.cumsum(0)])


def straightness(values: Float[Tensor, "s"], angles: Float[Tensor, "s n"]) -> float:
    """R² of a straight line through each digit's directions, averaged over digits."""
    x, y = values - values.mean(), angles - angles.mean(0)
    explained = (x @ y).square() / (x.square().sum() * y.square().sum(0)).clamp(min=1e-12)
    return explained.mean().item()


def _two(study: Study, trial: Trial, test: ImageSet) -> dict[str, float]:
    def compute() -> dict[str, float]:
        model = study.model(trial)
        values, lengths, vectors = turning(model, _sevens(test))
        angles, means = directions(vectors), lengths.mean(1)
        turned = (angles[-1] - angles[0]).abs().rad2deg().mean().item()
        return {"kept": (means.min() / means.max()).item(), "straight": straightness(values, angles), "turned": turned}

    return study.row(f"{trial.name}-turning", compute, trial.seed, weights=study.train(trial)["weights_sha256"])


def _four(study: Study, trial: Trial, test: ImageSet) -> dict[str, float]:
    def compute() -> dict[str, float]:
        model = study.model(trial)
        pictures, labels = to_float(test.images), test.labels
        sizes, resized = moved(pictures, "scale")
        strokes = torch.stack([narrower(pictures), pictures, wider(pictures)])
        found = {}
        for name, values, frames in (("size", sizes, resized), ("strokes", torch.tensor([-1.0, 0.0, 1.0]), strokes)):
            found[name] = readout(values, torch.stack([describe(model, frame, labels)[1] for frame in frames]), labels)
        return found

    return study.row(f"{trial.name}-readout", compute, trial.seed, weights=study.train(trial)["weights_sha256"])


def _sevens(test: ImageSet) -> Float[Tensor, "n c h w"]:
    return to_float(test.images[test.labels == SEVEN])


def run(study: Study) -> list[Verdict]:
    groups = search.tuned(study, _groups(study))
    study.train_all(search.by_seed(groups))
    count = study.pick(quick=1000, standard=2000, paper=10_000, smoke=1000)
    test = read_images(groups["2-D"][0].data, "test").take(torch.arange(count))
    two = [_two(study, trial, test) for trial in groups["2-D"]]
    four = [_four(study, trial, test) for trial in groups["4-D"]]
    with style():
        study.figure("margin-loss", _margin())
        study.figure("two-dimensions", _paths(*turning(study.model(groups["2-D"][0]), _sevens(test)[:SHOWN])))
        study.figure("four-dimensions", _moved(study.model(groups["4-D"][0]), test))
    turned = sum(one["turned"] for one in two) / len(two)
    note = f"it turns by {turned:.0f} degrees while the 7 turns by 60"
    straight = "2-D: the vector's direction is a straight line in the angle of the 7 (R² of at least 0.9)"
    return [
        judged("2-D: while a 7 turns, its vector keeps 90 % of its length", [one["kept"] for one in two], None, False,
               limit=0.9),
        judged(straight, [one["straight"] for one in two], None, False, note, "", limit=0.9),
        judged("4-D: the size is read off the vector (R² of at least 0.5)", [one["size"] for one in four], None, False,
               unit="", limit=0.5),
        judged("4-D: the stroke width is read off the vector (R² of at least 0.5)", [one["strokes"] for one in four],
               None, False, unit="", limit=0.5),
    ]  # fmt: skip


def _margin() -> Figure:
    """Eq. 4 against the length of one capsule: of the class that is there, and of one that is not."""
    lengths = torch.linspace(0, 1, 101)
    loss = {
        title: [margin_loss(x[None, None], torch.tensor([[there]])).item() for x in lengths]
        for title, there in (("the correct capsule", 1.0), ("a wrong capsule (λ = 0.5)", 0.0))
    }
    lines = {title: Curve(lengths.tolist(), [values]) for title, values in loss.items()}
    return curves({"margin loss": lines}, "length of the capsule")


def _paths(values: Tensor, lengths: Tensor, vectors: Float[Tensor, "s n 2"]) -> Figure:
    """The vectors of some sevens while they turn: a dot for each angle, dark to light from one end to the other."""
    figure = Figure(figsize=(WIDTH / 1.7, WIDTH / 1.7), layout="constrained")
    ax = figure.subplots()
    for path in vectors.unbind(1):
        ax.plot(*path.T.tolist(), linewidth=0.6, color="0.6", zorder=1)
        ax.scatter(*path.T.tolist(), c=values.tolist(), cmap="viridis", s=12, zorder=2)
    ax.scatter([0], [0], marker="+", color="0.4")
    ax.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), title="sevens turned by ±30 degrees", aspect="equal")
    ax.set(xlabel="first dimension", ylabel="second dimension")
    return figure


def _moved(model: CapsNet, test: ImageSet) -> Figure:
    """Each of the four dimensions of a seven moved, named by what it changes."""
    sevens = _sevens(test)
    pictures = probes.perturb(model, sevens[0], SEVEN).detach()
    usual = {name: values.std().item() for name, values in shape_of(sevens[:, 0]).items()}
    return perturbations(pictures, probes.TWEAKS, names_of(pictures[:, :, 0], usual))
