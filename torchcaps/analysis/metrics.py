"""Scores of each class, and the calibration of the lengths.

Everything is computed from the lengths `[n j]` of all images and their labels `[n k]`. The answer to an image with `k`
labels is its `k` longest capsules; each of them counts as one answer.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

BINS = 15


class PerClass(NamedTuple):
    """Of the images that were said to show a class, the share that do; of those that do, the share that was found."""

    precision: Float[Tensor, "j"]
    recall: Float[Tensor, "j"]
    f1: Float[Tensor, "j"]
    support: Int64[Tensor, "j"]

    def rows(self, classes: tuple[str, ...]) -> list[dict[str, float | int | str]]:
        columns = [column.tolist() for column in self]
        return [
            {"class": name, **dict(zip(self._fields, row, strict=True))}
            for name, *row in zip(classes, *columns, strict=True)
        ]


class Reliability(NamedTuple):
    """Answers sorted into bins by their length; a bin without answers has zeros."""

    length: Float[Tensor, "n"]
    accuracy: Float[Tensor, "n"]
    count: Int64[Tensor, "n"]

    @property
    def ece(self) -> float:
        """Expected calibration error: how far length and accuracy are apart, averaged over the answers."""
        share = self.count / self.count.sum().clamp(min=1)
        return float((share * (self.accuracy - self.length).abs()).sum())


def answered(lengths: Float[Tensor, "n j"], labels: Int[Tensor, "n k"]) -> Int64[Tensor, "n k"]:
    return lengths.topk(labels.shape[1], dim=1).indices


def confusion(lengths: Float[Tensor, "n j"], labels: Int[Tensor, "n 1"]) -> Int64[Tensor, "j j"]:
    """How often each label (row) was taken for each class (column); one label per image."""
    classes = lengths.shape[1]
    places = labels[:, 0] * classes + answered(lengths, labels)[:, 0]
    return torch.bincount(places, minlength=classes * classes).view(classes, classes)


def per_class(lengths: Float[Tensor, "n j"], labels: Int[Tensor, "n k"]) -> PerClass:
    """A class that was never answered has precision 0, as it has F1 0."""
    classes = lengths.shape[1]
    answers = answered(lengths, labels)
    right = (answers.unsqueeze(2) == labels.unsqueeze(1)).any(2)
    said = torch.bincount(answers.flatten(), minlength=classes)
    support = torch.bincount(labels.flatten(), minlength=classes)
    found = torch.bincount(answers[right], minlength=classes)
    return PerClass(
        found / said.clamp(min=1), found / support.clamp(min=1), 2 * found / (said + support).clamp(min=1), support
    )


def reliability(lengths: Float[Tensor, "n j"], labels: Int[Tensor, "n k"], bins: int = BINS) -> Reliability:
    """Guo et al., "On calibration of modern neural networks", ICML 2017, Eq. 3 and 5, with lengths as confidence.

    A length is trained to exceed 0.9 or to stay below 0.1 (Eq. 4 of Sabour et al. 2017), not to be a probability: what
    this measures is how wrong it would be to read it as one.
    """
    answers = answered(lengths, labels)
    right = (answers.unsqueeze(2) == labels.unsqueeze(1)).any(2).flatten().double()
    confidence = lengths.gather(1, answers).flatten().double()
    place = (confidence * bins).long().clamp(0, bins - 1)
    count = torch.bincount(place, minlength=bins)
    length, accuracy = (
        (torch.bincount(place, weights=values, minlength=bins) / count.clamp(min=1)).float()
        for values in (confidence, right)
    )
    return Reliability(length, accuracy, count)
