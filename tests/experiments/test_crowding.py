"""What is measured of composites that capsules were not made for."""

import pytest
import torch
from torch import nn

from torchcaps.core.types import ModelOutput
from torchcaps.data import images
from torchcaps.data.sets import Batch
from torchcaps.data.synthetic.crowds import Crowd
from torchcaps.experiments.crowding import ask, drawn


class Oracle(nn.Module):
    """Answers with the lengths, and draws the pictures, that it was given."""

    def __init__(self, lengths: torch.Tensor, pictures: torch.Tensor | None = None) -> None:
        super().__init__()
        self.lengths, self.pictures = lengths, pictures

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> ModelOutput:
        return ModelOutput(self.lengths, reconstruction=self.pictures)


def crowd(objects: int, same: bool) -> tuple[Crowd, Batch]:
    made = Crowd(images("mnist-mini", "test"), objects, same, count=100)
    return made, next(made.batches(100))


def test_classes_are_counted_not_digits() -> None:
    made, batch = crowd(2, same=True)
    sure = torch.full((100, 10), 0.1).scatter(1, batch.labels, 0.9)
    assert ask(Oracle(sure), made) == {"right": 1, "found": 1, "said": 1, "phantom": 0}
    wrong = sure.scatter(1, (batch.labels + 1) % 10, 0.6)
    assert ask(Oracle(wrong), made) == {"right": 1, "found": 1, "said": 0, "phantom": 1}


def test_two_of_three_are_found() -> None:
    made, batch = crowd(3, same=False)
    lengths = torch.full((100, 10), 0.2).scatter(1, batch.labels[:, :2], 0.9).scatter(1, batch.labels[:, 2:], 0.1)
    found = ask(Oracle(lengths), made)
    assert found == {"right": 0, "found": pytest.approx(2 / 3), "said": 0, "phantom": 0}


def test_a_picture_of_one_digit_is_told_from_one_of_both() -> None:
    made, batch = crowd(2, same=True)
    lengths = torch.zeros(100, 10)
    one = drawn(Oracle(lengths, batch.targets[:, :1]), made)
    assert one["nearer"] == pytest.approx(1)
    assert one["one"] == 1
    both = drawn(Oracle(lengths, batch.targets.amax(1, keepdim=True)), made)
    assert both["both"] == pytest.approx(1)
    assert both["one"] == 0
