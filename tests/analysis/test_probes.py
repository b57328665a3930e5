"""The numbers and pictures behind the figures."""

import pytest
import torch

from torchcaps.analysis import probes
from torchcaps.analysis.evaluate import evaluate
from torchcaps.analysis.probes import Answers
from torchcaps.core.errors import UserError
from torchcaps.data import load_test_set
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.registry import create_model

TINY = {"channels": 16, "primary_types": 2, "decoder": (16,)}


@pytest.fixture(scope="module")
def model() -> CapsNet:
    torch.manual_seed(0)
    return create_model("capsnet-multimnist-small", **TINY).eval()


@pytest.fixture
def answers() -> Answers:
    """Three pairs: both digits right, one right (2 taken for 7), none right."""
    lengths = torch.full((3, 10), 0.1)
    for row, found in enumerate([{1: 0.9, 5: 0.8, 3: 0.3}, {8: 0.9, 7: 0.7, 2: 0.4}, {0: 0.95, 9: 0.9, 4: 0.2}]):
        for digit, length in found.items():
            lengths[row, digit] = length
    return Answers(lengths, torch.tensor([[5, 1], [2, 8], [4, 6]]))


def test_answers_are_right_only_if_both_digits_are(answers: Answers) -> None:
    assert answers.predicted.tolist() == [[1, 5], [8, 7], [0, 9]]
    assert answers.right.tolist() == [0]
    assert answers.wrong.tolist() == [1, 2]


def test_breakdown(answers: Answers) -> None:
    shares = probes.breakdown(answers)
    third = pytest.approx(1 / 3)
    assert [shares[name] for name in ("both digits right", "only one right", "neither right")] == [third] * 3
    assert shares["first answer is in the image"] == pytest.approx(2 / 3)
    assert shares["second answer is in the image"] == third


def test_class_misses(answers: Answers) -> None:
    shown, missed = probes.class_misses(answers)
    assert shown.tolist() == [0, 1, 1, 0, 1, 1, 1, 0, 1, 0]
    assert missed.tolist() == [0, 0, 1, 0, 1, 0, 1, 0, 0, 0]


def test_the_worst_mistakes_are_the_most_confident(answers: Answers) -> None:
    # 0.95 against 0.1 is worse than 0.7 against 0.4; what is right is no mistake.
    assert probes.worst(answers, 5) == [2, 1]
    assert probes.worst(answers, 1) == [2]


def test_samples_are_those_of_figure_5(answers: Answers) -> None:
    assert probes.samples(answers, right=1, absent=0, wrong=1) == [(0, (5, 1)), (1, (2, 8)), (1, (7, 8))]
    # The longest capsule of a digit that is neither label nor prediction.
    assert probes.samples(answers, right=0, absent=1, wrong=0) == [(0, (5, 3))]


@pytest.mark.parametrize(
    ("predicted", "labels", "expected"),
    [((7, 2), (2, 8), (2, 7)), ((8, 7), (2, 8), (7, 8)), ((1, 0), (2, 3), (1, 0)), ((3,), (5,), (3,))],
)
def test_a_prediction_is_aligned_with_the_labels(
    predicted: tuple[int, ...], labels: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert probes.aligned(predicted, labels) == expected


def test_picked_images_are_those_of_the_set() -> None:
    data = load_test_set("multimnist-mini", pairs=25)
    whole = next(data.batches(25))
    picked = probes.pick(data, [24, 3, 3, 11], batch_size=10)
    for field, everything in zip(picked, whole, strict=True):
        assert torch.equal(field, everything[[24, 3, 3, 11]])


def test_answers_agree_with_the_evaluation(model: CapsNet) -> None:
    data = load_test_set("multimnist-mini", pairs=60)
    answers = probes.answer(model, data)
    scores = evaluate(model, data)
    shares = probes.breakdown(answers)
    assert len(answers.right) / 60 == pytest.approx(scores["accuracy"])
    assert shares["both digits right"] + shares["only one right"] == pytest.approx(scores["at_least_one"])


def test_redrawn_pictures_are_of_the_chosen_capsules(model: CapsNet) -> None:
    data = load_test_set("multimnist-mini", pairs=5)
    answers = probes.answer(model, data)
    first, second = probes.redraw(model, data, answers, [(4, (2, 7)), (1, (7, 2))])
    batch = probes.pick(data, [4, 1])
    assert torch.equal(first.image, batch.images[0])
    assert second.labels == tuple(batch.labels[1].tolist())
    assert second.predicted == tuple(answers.predicted[1].tolist())
    with torch.no_grad():
        sevens = model(batch.images, torch.tensor([[7], [7]])).reconstruction[:, 0]
    torch.testing.assert_close(first.pictures[1], sevens[0])
    torch.testing.assert_close(second.pictures[0], sevens[1])


def test_a_perturbation_moves_one_dimension_of_one_capsule(model: CapsNet) -> None:
    image = next(load_test_set("multimnist-mini", pairs=1).batches(1)).images[0]
    pictures = probes.perturb(model, image, label=3)
    assert pictures.shape == (16, 11, 1, 36, 36)
    with torch.no_grad():
        output = model(image[None])
        corner = model.corner(image[None])
        unmoved = model.reconstruct(output.capsules, output.lengths, torch.tensor([[3]]), corner)[0, 0]
        moved = output.capsules.clone()
        moved[0, 3, 5] -= 0.25
        expected = model.reconstruct(moved, output.lengths, torch.tensor([[3]]), corner)[0, 0]
    torch.testing.assert_close(pictures[:, 5], unmoved.expand(16, -1, -1, -1))
    torch.testing.assert_close(pictures[5, 0], expected)
    assert not torch.equal(pictures[5, 0], pictures[5, 5])


def test_nothing_is_perturbed_without_a_decoder() -> None:
    blind = create_model("capsnet-mnist-small", channels=16, primary_types=2, decoder=None).eval()
    assert not probes.reconstructs(blind)
    with pytest.raises(UserError, match="no decoder"):
        probes.perturb(blind, torch.zeros(1, 28, 28), 0)
