"""What capsules cannot do: two digits of the same class, and more digits than they were trained on.

A layer with one capsule for each class assumes that "at each location in the image, there is at most one instance of
the type of entity that a capsule represents" (section 8). Its training images never have two digits of a class, and a
capsule's length can say that its class is there, not how often. Composites are made as MultiMNIST's are: digits of the
test set, shifted by up to 4 pixels, their sum clipped at 1.

right      the classes in the image are those with the longest capsules, as many as there are classes
found      share of the classes in the image that are among these
said       just the classes in the image have capsules of 0.5 or longer
phantom    some class that is not in the image has a capsule of 0.5 or longer
"""

import torch
from torch import nn

from torchcaps import data
from torchcaps.analysis import probes
from torchcaps.analysis.answers import NONE_OF_THESE
from torchcaps.core.functional import present
from torchcaps.data.sets import ScoredSet
from torchcaps.data.synthetic.crowds import Crowd
from torchcaps.experiments import fig5
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.verdicts import Verdict, judged
from torchcaps.training.scoring import INK
from torchcaps.viz.figures import style, titled_rows
from torchcaps.viz.figures.style import overlaid

PAPER = "Sabour, Frosst and Hinton 2017, sections 6 (footnote 3) and 8"
CUT = dict.fromkeys(("quick", "standard"), "the small network with the weights in the package")
CROWDS = {
    "one digit": (1, False),
    "two different digits": (2, False),
    "two of the same digit": (2, True),
    "three different digits": (3, False),
}
SAME = "two of the same digit"
SHOWN = 6


def plan(study: Study) -> list[Trial]:
    return fig5.plan(study)


@torch.no_grad()
def ask(model: nn.Module, crowd: ScoredSet) -> dict[str, float]:
    """How often the classes of a crowd are recognised."""
    sums = {"right": 0.0, "found": 0.0, "said": 0.0, "phantom": 0.0}
    for batch in crowd.batches(250):
        lengths = model(batch.images).lengths
        there = present(batch.labels, lengths.shape[1]).bool()
        kinds = int(there[0].sum())
        longest = torch.zeros_like(there).scatter(1, lengths.topk(kinds).indices, True)
        long = lengths >= NONE_OF_THESE
        sums["right"] += float((longest == there).all(1).sum())
        sums["found"] += float((longest & there).sum() / kinds)
        sums["said"] += float((long == there).all(1).sum())
        sums["phantom"] += float((long & ~there).any(1).sum())
    return {name: total / len(crowd) for name, total in sums.items()}


@torch.no_grad()
def drawn(model: nn.Module, crowd: ScoredSet) -> dict[str, float]:
    """What the one capsule of two digits draws: overlap (IoU) with the nearer digit, with the other, with both as one.

    `one` is the share of images in which its picture is nearer to one digit than to both as one.
    """
    sums = {"nearer": 0.0, "other": 0.0, "both": 0.0, "one": 0.0}
    for batch in crowd.batches(250):
        picture = probes.decode(model, batch.images, batch.labels[:, :1])[:, 0] > INK
        digits = batch.targets > INK
        single = torch.stack([_iou(picture, digit) for digit in digits.unbind(1)], 1)
        both, nearer = _iou(picture, digits.any(1)), single.amax(1)
        for name, values in {"nearer": nearer, "other": single.amin(1), "both": both, "one": nearer > both}.items():
            sums[name] += float(values.sum())
    return {name: total / len(crowd) for name, total in sums.items()}


def _iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a & b).flatten(1).sum(1) / (a | b).flatten(1).sum(1).clamp(min=1)


def run(study: Study) -> list[Verdict]:
    model, weights = study.network(fig5.trial(), "capsnet-multimnist-fine")
    name, count = ("mnist-mini", 200) if study.preset == "smoke" else ("mnist", 5000)
    digits = data.images(name, "test")
    crowds = {title: Crowd(digits, objects, same, count) for title, (objects, same) in CROWDS.items()}
    told = {
        title: study.row(title.replace(" ", "-"), lambda crowd=crowd: ask(model, crowd), weights=weights, images=count)
        for title, crowd in crowds.items()
    }
    picture = study.row("drawn", lambda: drawn(model, crowds[SAME]), weights=weights, images=count)
    with style():
        study.figure("crowding", titled_rows(_pictures(model, crowds)))
    right = [
        judged(
            f"{title}: the longest capsule{'s are theirs' if crowds[title].objects > 1 else ' is its'}",
            [found["right"]],
            None,
            False,
            f"{found['found']:.1%} of the digits are found; just their capsules are 0.5 or longer in "
            f"{found['said']:.1%}, that of a digit which is not there in {found['phantom']:.1%}",
        )
        for title, found in told.items()
    ]
    one = judged(
        f"{SAME}: its capsule draws one of them rather than both",
        [picture["one"]],
        None,
        False,
        f"share of images; IoU with the nearer digit {picture['nearer']:.2f}, with the other {picture['other']:.2f}, "
        f"with both as one {picture['both']:.2f}",
        limit=0.5,
    )
    two = "a class has one capsule, and a capsule one length"
    return [*right, one, Verdict(f"{SAME}: told that there are two", None, 0.0, None, 0, note=two)]


def _pictures(model: nn.Module, crowds: dict[str, Crowd]) -> list[tuple[str, torch.Tensor]]:
    """The first composites of each kind, their digits, and what their capsules draw, each in a colour of its own."""
    rows: list[tuple[str, torch.Tensor]] = []
    for title, crowd in crowds.items():
        if crowd.objects == 1:
            continue
        batch = probes.pick(crowd, range(SHOWN))
        labels = batch.labels[:, :1] if crowd.same else batch.labels
        pictures = probes.decode(model, batch.images, labels)
        rows += [(title, batch.images), ("  the digits", _coloured(batch.targets)), ("  redrawn", _coloured(pictures))]
    return rows


def _coloured(pictures: torch.Tensor) -> torch.Tensor:
    """Two in red and green; a third in blue."""
    seen = torch.stack([torch.from_numpy(overlaid(several[:2])).permute(2, 0, 1) for several in pictures])
    if pictures.shape[1] == 3:
        seen[:, 2:] = (seen[:, 2:] + pictures[:, 2]).clamp(max=1)
    return seen
