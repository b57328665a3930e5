"""What a score hides, on answers that can be counted by hand."""

import pytest
import torch

from torchcaps.analysis import metrics
from torchcaps.analysis.evaluate import evaluate
from torchcaps.data import load_test_set
from torchcaps.models.registry import create_model

# Labels 0 0 1 2, answers 0 1 1 0: class 2 is never answered.
LENGTHS = torch.tensor([[0.9, 0.1, 0.1], [0.2, 0.6, 0.1], [0.1, 0.7, 0.3], [0.5, 0.2, 0.4]])
LABELS = torch.tensor([[0], [0], [1], [2]])


def test_confusion_counts_every_image_once() -> None:
    assert metrics.confusion(LENGTHS, LABELS).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_precision_recall_and_f1_by_hand() -> None:
    precision, recall, f1, support = (column.tolist() for column in metrics.per_class(LENGTHS, LABELS))
    assert precision == [0.5, 0.5, 0.0]
    assert recall == [0.5, 1.0, 0.0]
    assert f1 == pytest.approx([0.5, 2 / 3, 0.0])
    assert support == [2, 1, 1]


def test_a_class_of_a_pair_is_found_if_it_is_among_the_two_longest() -> None:
    lengths = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.2, 0.8]])
    found = metrics.per_class(lengths, torch.tensor([[1, 0], [0, 1]]))
    assert found.recall.tolist() == [1.0, 0.5, 0.0]
    assert found.precision.tolist() == [1.0, 1.0, 0.0]
    assert found.support.tolist() == [2, 2, 0]


def test_calibration_error_by_hand() -> None:
    bins = metrics.reliability(LENGTHS, LABELS, bins=2)
    # 0.9, 0.6, 0.7 and 0.5 lie in the upper half; the first and the third are right.
    assert bins.count.tolist() == [0, 4]
    assert bins.accuracy.tolist() == [0.0, 0.5]
    assert bins.length[1].item() == pytest.approx(2.7 / 4)
    assert bins.ece == pytest.approx(2.7 / 4 - 0.5)


def test_sure_and_right_is_calibrated_sure_and_wrong_is_not() -> None:
    sure = torch.eye(4)
    assert metrics.reliability(sure, torch.arange(4)[:, None]).ece == 0.0
    assert metrics.reliability(sure, torch.arange(4).flip(0)[:, None]).ece == 1.0


def test_lengths_beyond_one_fall_into_the_last_bin() -> None:
    assert metrics.reliability(torch.tensor([[1.2, 0.0]]), torch.tensor([[0]])).count.tolist()[-1] == 1


@pytest.mark.parametrize(
    ("name", "data"), [("capsnet-mnist-small", "mnist-mini"), ("cnn-multimnist-small", "multimnist-mini")]
)
def test_evaluation_names_its_classes(name: str, data: str) -> None:
    small = {"channels": 16, "primary_types": 2, "decoder": None} if "capsnet" in name else {}
    tested = load_test_set(data, pairs=100)
    classes = tuple("zyxwvutsrq")
    scores = evaluate(create_model(name, **small), tested, classes=classes)
    rows = scores["per_class"]
    assert [row["class"] for row in rows] == list(classes)
    assert set(rows[0]) == {"class", "precision", "recall", "f1", "support"}
    assert sum(row["support"] for row in rows) == len(tested) * tested.objects
    found = sum(row["recall"] * row["support"] for row in rows) / len(tested) / tested.objects
    assert found == pytest.approx(scores["per_digit" if tested.objects == 2 else "accuracy"], abs=1e-6)
    assert 0 <= scores["ece"] <= 1
    assert "per_class" not in evaluate(create_model(name, **small), tested)
