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
from torchcaps.data.sets import to_float
from torchcaps.data.transforms import affine, affine_matrices
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, compared, judged
from torchcaps.models.baseline import CNN
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Srihari, Capsule Networks (lecture), 'Example of capsule and output vector'; Sabour et al. 2017, section 1"
CUT = "the small CapsNet with the weights in the package, the small CNN, 2,000 steps; one training each"
RANGES = {"rotation": (-30.0, 30.0), "scale": (0.75, 1.25), "shift": (-4.0, 4.0)}
UNITS = {"rotation": "degrees", "scale": "times", "shift": "pixels to the right"}
STEPS = 13
RIDGE = 1e-3


def _trials(study: Study) -> dict[str, Trial]:
    small = study.pick(quick="-small", paper="", smoke="-small")
    data = study.pick(quick="mnist", paper="mnist", smoke="mnist-mini")
    training = study.pick(quick={"steps": 2000}, paper=protocols.MNIST, smoke=protocols.SMOKE)
    return {
        kind: Trial(kind.lower(), f"{kind.lower()}-mnist{small}", data, 0, {}, training) for kind in ("CapsNet", "CNN")
    }


def plan(study: Study) -> list[Trial]:
    trials = _trials(study)
    return list(trials.values()) if study.preset == "paper" else [trials["CNN"]]


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


def run(study: Study) -> list[Verdict]:
    trials = _trials(study)
    capsnet, weights = study.network(trials["CapsNet"], "capsnet-mnist-small")
    cnn, cnn_weights = study.model(trials["CNN"]), study.train(trials["CNN"])["weights_sha256"]
    count = study.pick(quick=1000, paper=10_000, smoke=200)
    test = read_images(trials["CNN"].data, "test").take(torch.arange(count))
    pictures, labels = to_float(test.images), test.labels
    found = {}
    for kind, model, sha256 in (("CapsNet", capsnet, weights), ("CNN", cnn, cnn_weights)):
        right = probes.answer(model, test).hits == 1
        for what in RANGES:
            found[kind, what] = study.row(
                f"{kind.lower()}-{what}",
                lambda model=model, right=right, what=what: measure(model, pictures[right], labels[right], what),
                weights=sha256,
                images=count,
            )
    with style():
        study.figure("equivariance", _figure(found))
    verdicts = []
    for what, (low, high) in RANGES.items():
        caps, theirs = found["CapsNet", what], found["CNN", what]
        kept, turned = min(caps["sure"]) / max(caps["sure"]), max(caps["turned"])
        reach = f"{what} {low:g} to {high:g}"
        verdicts += [
            judged(f"{reach}: the capsule keeps 90 % of its length", [kept], None, False,
                   f"and turns by up to {turned:.0f} degrees", limit=0.9),
            judged(f"{reach}: the capsule's path is a straight line (R² of at least 0.9)", [caps["linearity"]], None,
                   False, f"CNN's hidden layer: {theirs['linearity']:.2f}", "", limit=0.9),
            compared(f"{reach}: it is read off better from the capsule than from the CNN, by (R²)", [caps["readout"]],
                     [theirs["readout"]], None, f"{caps['readout']:.2f} against {theirs['readout']:.2f}", ""),
        ]  # fmt: skip
    return verdicts


def _figure(found: dict[tuple[str, str], dict]) -> Figure:
    panels = {}
    for what, (low, high) in RANGES.items():
        x = torch.linspace(low, high, STEPS).tolist()
        panels[f"{what} ({UNITS[what]})"] = {
            "CapsNet: length": Curve(x, [found["CapsNet", what]["sure"]]),
            "CNN: probability": Curve(x, [found["CNN", what]["sure"]]),
            "CapsNet: vector turned (90° is 1)": Curve(x, [[a / 90 for a in found["CapsNet", what]["turned"]]]),
        }
    return curves(panels, "", marks=True, share_x=False)
