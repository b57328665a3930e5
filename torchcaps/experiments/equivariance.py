"""Equivariance: while a digit is turned, resized or moved, its capsule should keep its length and change its direction.

How linear that move is: the share of the variance of the vector along its path that a straight line in the parameter
explains (R², averaged over digits). How well the parameter can be read off: R² on other digits of a linear readout
for each class. Both also for the CNN's last hidden layer, whose softmax takes the place of the length.
"""

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from torchcaps.analysis import probes
from torchcaps.data import images as read_images
from torchcaps.data.sets import ImageSet, to_float
from torchcaps.data.transforms import affine, affine_matrices
from torchcaps.experiments import protocols, search
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, compared, judged
from torchcaps.models.baseline import CNN
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Srihari, Capsule Networks (lecture), 'Example of capsule and output vector'; Sabour et al. 2017, section 1"
CUT = {
    "quick": "the small networks, 500 steps, 1,000 images",
    "standard": "the small networks, 3,000 steps a training, 2,000 images",
}
KINDS = {"CapsNet": "capsnet-mnist", "CNN": "cnn-mnist"}
RANGES = {"rotation": (-30.0, 30.0), "scale": (0.75, 1.25), "shift": (-4.0, 4.0)}
UNITS = {"rotation": "degrees", "scale": "times", "shift": "pixels to the right"}
STEPS = 13
RIDGE = 1e-3


def _groups(study: Study) -> dict[str, list[Trial]]:
    small, data = "" if study.preset == "paper" else "-small", "mnist-mini" if study.preset == "smoke" else "mnist"
    training = study.pick(
        quick={"steps": 500}, standard={"steps": 3000, "validation": 0}, paper=protocols.MNIST, smoke=protocols.SMOKE
    )
    seeds = study.seeds_or(study.pick(quick=1, standard=5, paper=1, smoke=1))
    return {
        kind: [Trial(f"{kind.lower()}-{s}", model + small, data, s, {}, dict(training)) for s in seeds]
        for kind, model in KINDS.items()
    }


def plan(study: Study) -> list[Trial]:
    return search.planned(study, _groups(study))


def moved(pictures: Float[Tensor, "n c h w"], what: str) -> tuple[Float[Tensor, "s"], Float[Tensor, "s n c h w"]]:
    """The pictures under each value of one parameter."""
    values = torch.linspace(*RANGES[what], STEPS)
    n, zero = len(pictures), torch.zeros(len(pictures))
    frames = []
    for value in values:
        same = torch.full((n,), float(value))
        rotation = same if what == "rotation" else zero
        scale = (same if what == "scale" else torch.ones(n))[:, None].expand(n, 2)
        shift = torch.stack([zero, same if what == "shift" else zero], 1)
        frames.append(affine(pictures, affine_matrices(rotation, zero, scale, shift)))
    return values, torch.stack(frames)


@torch.no_grad()
def describe(
    model: nn.Module, pictures: Float[Tensor, "n c h w"], labels: Tensor
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n d"]]:
    """For each picture how sure the network is of its label, and the vector that describes it."""
    rows = torch.arange(len(pictures))
    output = model(pictures)
    if isinstance(model, CNN):
        hidden = model.layers[:-1](pictures)
        return output.lengths[rows, labels], hidden
    return output.lengths[rows, labels], output.capsules[rows, labels]


def path_linearity(values: Float[Tensor, "s"], vectors: Float[Tensor, "s n d"]) -> float:
    """R² of a straight line through each picture's path, averaged over pictures."""
    t = (values - values.mean()) / (values - values.mean()).norm()
    centred = vectors - vectors.mean(0)
    explained = torch.einsum("s,snd->nd", t, centred).square().sum(1)
    return (explained / centred.square().sum((0, 2)).clamp(min=1e-12)).mean().item()


def readout(values: Float[Tensor, "s"], vectors: Float[Tensor, "s n d"], labels: Tensor) -> float:
    """R² on the second half of the digits of a linear readout of the parameter, fitted on the first, class by class."""
    scores = []
    target = (values - values.mean()) / values.std()
    for k in labels.unique():
        these = (labels == k).nonzero()[:, 0]
        fit, held = these[: len(these) // 2], these[len(these) // 2 :]
        x, unseen = (torch.nn.functional.pad(vectors[:, part], (0, 1), value=1.0) for part in (fit, held))
        flat, wanted = x.flatten(0, 1).double(), target.repeat_interleave(len(fit)).double()
        gram = flat.T @ flat + RIDGE * len(flat) * torch.eye(flat.shape[1], dtype=torch.float64)
        answer = unseen.double() @ torch.linalg.solve(gram, flat.T @ wanted)
        truth = target.double()[:, None].expand_as(answer)
        scores.append(1 - ((answer - truth).square().mean() / truth.var(correction=0)).item())
    return sum(scores) / len(scores)


def measure(model: nn.Module, pictures: Float[Tensor, "n c h w"], labels: Tensor, what: str) -> dict[str, object]:
    values, frames = moved(pictures, what)
    answers = [describe(model, frame, labels) for frame in frames]
    sure, vectors = torch.stack([a for a, _ in answers]), torch.stack([v for _, v in answers])
    middle = STEPS // 2
    turned = torch.cosine_similarity(vectors, vectors[middle][None], dim=2).clamp(-1, 1).acos().rad2deg()
    return {
        "sure": sure.mean(1).tolist(),
        "turned": turned.mean(1).tolist(),
        "linearity": path_linearity(values, vectors),
        "readout": readout(values, vectors, labels),
    }


Found = dict[str, dict[str, list[dict]]]
"""By network and by what was done to the digits, a measurement of each seed."""


def run(study: Study) -> list[Verdict]:
    groups = search.tuned(study, _groups(study))
    study.train_all(search.by_seed(groups))
    count = study.pick(quick=1000, standard=2000, paper=10_000, smoke=200)
    test = read_images(groups["CNN"][0].data, "test").take(torch.arange(count))
    found: Found = {
        kind: {what: [_measured(study, trial, test, what) for trial in trials] for what in RANGES}
        for kind, trials in groups.items()
    }
    with style():
        study.figure("equivariance", _figure(found))
    return [verdict for what in RANGES for verdict in _verdicts(what, found["CapsNet"][what], found["CNN"][what])]


def _measured(study: Study, trial: Trial, test: ImageSet, what: str) -> dict:
    def compute() -> dict[str, object]:
        model = study.model(trial)
        right = probes.answer(model, test).hits == 1
        return measure(model, to_float(test.images)[right], test.labels[right], what)

    weights = study.train(trial)["weights_sha256"]
    return study.row(f"{trial.name}-{what}", compute, trial.seed, weights=weights, images=len(test))


def _verdicts(what: str, caps: list[dict], theirs: list[dict]) -> list[Verdict]:
    low, high = RANGES[what]
    reach = f"{what} {low:g} to {high:g}"
    kept, turned = [min(one["sure"]) / max(one["sure"]) for one in caps], [max(one["turned"]) for one in caps]
    values = {name: ([one[name] for one in caps], [one[name] for one in theirs]) for name in ("linearity", "readout")}

    def mean(numbers: list[float]) -> float:
        return sum(numbers) / len(numbers)

    straight, line_of_cnn = values["linearity"]
    ours, read_of_cnn = values["readout"]
    return [
        judged(f"{reach}: the capsule keeps 90 % of its length", kept, None, False,
               f"and turns by up to {mean(turned):.0f} degrees", limit=0.9),
        judged(f"{reach}: the capsule's path is a straight line (R² of at least 0.9)", straight, None, False,
               f"CNN's hidden layer: {mean(line_of_cnn):.2f}", "", limit=0.9),
        compared(f"{reach}: it is read off better from the capsule than from the CNN, by (R²)", ours, read_of_cnn, None,
                 f"{mean(ours):.2f} against {mean(read_of_cnn):.2f}", ""),
    ]  # fmt: skip


def _figure(found: Found) -> Figure:
    panels = {}
    for what, (low, high) in RANGES.items():
        x = torch.linspace(low, high, STEPS).tolist()
        caps, theirs = found["CapsNet"][what], found["CNN"][what]
        panels[f"{what} ({UNITS[what]})"] = {
            "CapsNet: length": Curve(x, [one["sure"] for one in caps]),
            "CNN: probability": Curve(x, [one["sure"] for one in theirs]),
            "CapsNet: vector turned (90° is 1)": Curve(x, [[a / 90 for a in one["turned"]] for one in caps]),
        }
    return curves(panels, "", marks=True, share_x=False)
