"""Answers and reconstructions of a trained network on a data set: the data of every figure.

"The first" images of a kind are the first in the fixed order of the set: none is chosen for its looks.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.data.sets import Batch, ScoredSet
from torchcaps.models.capsnet import CapsNet
from torchcaps.training.scoring import hits, scored_at_once

# Figure 4 of Sabour et al. 2017: "tweaked by intervals of 0.05 in the range [-0.25, 0.25]".
TWEAKS = tuple(step / 20 for step in range(-5, 6))


class Answers(NamedTuple):
    """A network's answer to every image of a set."""

    lengths: Float[Tensor, "n j"]
    labels: Int64[Tensor, "n k"]

    @property
    def predicted(self) -> Int64[Tensor, "n k"]:
        """As many classes as the image has labels, the longest capsule's first."""
        return self.lengths.topk(self.labels.shape[1], dim=1).indices

    @property
    def hits(self) -> Int64[Tensor, "n"]:
        return hits(self.lengths, self.labels)

    @property
    def right(self) -> Int64[Tensor, "m"]:
        return (self.hits == self.labels.shape[1]).nonzero()[:, 0]

    @property
    def wrong(self) -> Int64[Tensor, "m"]:
        return (self.hits < self.labels.shape[1]).nonzero()[:, 0]


class Redrawn(NamedTuple):
    """An image, and what the decoder makes of some of its capsules, one at a time."""

    image: Float[Tensor, "c h w"]
    labels: tuple[int, ...]
    predicted: tuple[int, ...]
    decoded: tuple[int, ...]
    pictures: Float[Tensor, "k c h w"]


def reconstructs(model: nn.Module) -> TypeGuard[CapsNet]:
    return getattr(model, "decoder", None) is not None


@torch.no_grad()
def answer(model: nn.Module, data: ScoredSet) -> Answers:
    """Ask about every image once."""
    lengths, labels = [], []
    for batch in data.batches(scored_at_once(data)):
        lengths.append(model(batch.images).lengths)
        labels.append(batch.labels)
    return Answers(torch.cat(lengths), torch.cat(labels))


def pick(data: ScoredSet, indices: Sequence[int] | Int64[Tensor, "m"], batch_size: int = 1000) -> Batch:
    """Some images of a set, in the order of `indices`."""
    wanted = torch.as_tensor(indices, dtype=torch.int64)
    found: dict[int, Batch] = {}
    for number, batch in enumerate(data.batches(batch_size)):
        here = wanted[wanted // batch_size == number]
        found |= {int(i): Batch(*(field[int(i) % batch_size] for field in batch)) for i in here}
        if len(found) == len(wanted.unique()):
            break
    return Batch(*(torch.stack(field) for field in zip(*(found[int(i)] for i in wanted), strict=True)))


@torch.no_grad()
def decode(
    model: nn.Module, images: Float[Tensor, "b c h w"], classes: Int[Tensor, "b k"]
) -> Float[Tensor, "b k c h w"]:
    """What the capsules of the given classes see, each decoded with all others masked out."""
    return model(images, classes).reconstruction


@torch.no_grad()
def perturb(
    model: CapsNet, image: Float[Tensor, "c h w"], label: int, tweaks: Sequence[float] = TWEAKS
) -> Float[Tensor, "d s c h w"]:
    """Figure 4: decode one class capsule with one of its `d` dimensions moved by each of `s` amounts."""
    output = model(image[None])
    j, d = output.capsules.shape[1:]
    moved = output.capsules.repeat(d * len(tweaks), 1, 1).view(d, len(tweaks), j, d)
    moved[:, :, label] += torch.einsum("de,s->dse", torch.eye(d), torch.tensor(tweaks)).to(moved.device)
    flat = moved.flatten(0, 1)
    labels = torch.full((len(flat), 1), label, device=flat.device)
    corner = model.corner(image.expand(len(flat), -1, -1, -1))
    pictures = model.reconstruct(flat, output.lengths.expand(len(flat), j), labels, corner)
    if pictures is None:
        raise UserError("this network has no decoder, which is needed to show the effect of its capsules' dimensions")
    return pictures[:, 0].unflatten(0, (d, len(tweaks)))


def effects(moved: Float[Tensor, "d s c h w"]) -> Float[Tensor, "d"]:
    """How much each dimension changes the picture: the mean squared distance from the mean of its row."""
    return (moved - moved.mean(1, keepdim=True)).square().flatten(1).mean(1)


def redraw(
    model: nn.Module, data: ScoredSet, answers: Answers, chosen: Sequence[tuple[int, tuple[int, ...]]]
) -> list[Redrawn]:
    """For each pair of an image's number and the classes to decode, the pictures."""
    if not chosen:
        return []
    numbers = [number for number, _ in chosen]
    batch = pick(data, numbers)
    pictures = decode(model, batch.images, torch.tensor([classes for _, classes in chosen]))
    predicted = answers.predicted
    return [
        Redrawn(image, tuple(labels.tolist()), tuple(predicted[number].tolist()), classes, drawn)
        for image, labels, drawn, (number, classes) in zip(batch.images, batch.labels, pictures, chosen, strict=True)
    ]


def aligned(predicted: Sequence[int], labels: Sequence[int]) -> tuple[int, ...]:
    """The prediction in the order of the labels: what both have stands in the same place.

    >>> aligned((7, 2), (2, 8))
    (2, 7)
    """
    others = iter([k for k in predicted if k not in labels])
    return tuple(k if k in predicted else next(others) for k in labels)


def tempting(answers: Answers, number: int) -> int:
    """The class with the longest capsule among those that are neither in the image nor predicted to be."""
    lengths = answers.lengths[number].clone()
    lengths[answers.labels[number]] = -1
    lengths[answers.predicted[number]] = -1
    return int(lengths.argmax())


def samples(answers: Answers, right: int, absent: int, wrong: int) -> list[tuple[int, tuple[int, ...]]]:
    """Which images to redraw from which capsules, as in Figures 3 and 5: the first that are right, from their labels;
    some more from one label and a class that is not there; the first that are wrong, from label and from prediction.
    """
    labels = [tuple(row) for row in answers.labels.tolist()]
    first = answers.right.tolist()
    chosen = [(number, labels[number]) for number in first[:right]]
    chosen += [(n, (*labels[n][:-1], tempting(answers, n))) for n in first[right : right + absent]]
    for n in answers.wrong.tolist()[:wrong]:
        chosen += [(n, labels[n]), (n, aligned(answers.predicted[n].tolist(), labels[n]))]
    return chosen


def worst(answers: Answers, count: int) -> list[int]:
    """The most confident mistakes: where the longest capsule that is wrong exceeds the shortest that is right most."""
    absent = answers.lengths.scatter(1, answers.labels, -1.0)
    excess = absent.amax(1) - answers.lengths.gather(1, answers.labels).amin(1)
    wrong = answers.wrong
    return wrong[excess[wrong].argsort(descending=True, stable=True)][:count].tolist()


def breakdown(answers: Answers) -> dict[str, float]:
    """For images of two digits: how many were found, and how often the first and the second answer are right."""
    found = answers.hits
    ranked = (answers.predicted.unsqueeze(2) == answers.labels.unsqueeze(1)).any(2).float().mean(0)
    return {
        "both digits right": (found == 2).float().mean().item(),
        "only one right": (found == 1).float().mean().item(),
        "neither right": (found == 0).float().mean().item(),
        "first answer is in the image": ranked[0].item(),
        "second answer is in the image": ranked[1].item(),
    }


def class_misses(answers: Answers) -> tuple[Int64[Tensor, "j"], Int64[Tensor, "j"]]:
    """For each class, in how many images it is, and in how many of these it was not found."""
    classes = answers.lengths.shape[1]
    missed = ~(answers.labels.unsqueeze(2) == answers.predicted.unsqueeze(1)).any(2)
    shown = torch.bincount(answers.labels.flatten(), minlength=classes)
    return shown, torch.bincount(answers.labels[missed], minlength=classes)
