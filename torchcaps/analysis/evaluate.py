"""The scores of a network on a test set, as a whole and for each class."""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.analysis import metrics
from torchcaps.data.sets import ScoredSet
from torchcaps.training.scoring import score


def evaluate(
    model: nn.Module, data: ScoredSet, batch_size: int | None = None, classes: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """The scores; with the names of the classes, also the scores of each (`per_class`) and the calibration error of the
    lengths (`ece`)."""
    seen: list[tuple[Tensor, Tensor]] | None = None if classes is None else []
    scores = score(model, data, batch_size, seen)
    if classes is None or seen is None:
        return scores
    lengths, labels = (torch.cat(column) for column in zip(*seen, strict=True))
    return scores | by_class(lengths, labels, classes)


def by_class(lengths: Tensor, labels: Tensor, classes: tuple[str, ...]) -> dict[str, Any]:
    per_class = metrics.per_class(lengths, labels).rows(classes)
    return {"per_class": per_class, "ece": metrics.reliability(lengths, labels).ece}
