"""Checks of how a model is scored, and that nothing is selected on the test set."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchcaps.core.types import ModelOutput
from torchcaps.data.sets import Batch, ImageSet, ScoredSet, to_float
from torchcaps.testing.core import must_run, require, same_bytes, seeded

# evaluate(model, data, batch_size=...) -> {"accuracy": ..., "images": ..., ...}
Evaluate = Callable[..., Mapping[str, object]]
# metric(lengths [b j], labels [b k]) -> [b], true where the image counts as right
PairMetric = Callable[[Tensor, Tensor], Tensor]
# train(train_set, test_set) -> weights by name
Train = Callable[[ImageSet, ImageSet], Mapping[str, Tensor]]

CLASSES = 10
BATCH_SIZES = (1, 7, 64)


@dataclass(frozen=True, eq=False)
class AnsweredSet:
    """Test images with prepared answers, of which a known number is right."""

    images: Tensor
    labels: Tensor
    answers: Tensor
    right: int
    name: str = "answered"

    @property
    def objects(self) -> int:
        return self.labels.shape[1]

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int) -> Iterator[Batch]:
        for images, labels in zip(self.images.split(size), self.labels.split(size), strict=True):
            yield Batch(images.clone(), labels.clone(), images[:, None].repeat(1, self.objects, 1, 1, 1))


def answered_set(objects: int, count: int = 103) -> AnsweredSet:
    """Wrong answers are at the end, so that a plain mean over batches of different sizes gives another number.

    With two digits, a third of the answers has one of the two right, which must count as wrong.
    """
    with seeded(objects):
        images = torch.randint(256, (count, 1, 8, 8)).float() / 255
        labels = torch.stack([torch.randperm(CLASSES)[:objects] for _ in range(count)])
        row = torch.arange(count)
        wrong = (row % 5 == 0) | (row >= count - 9)
        half = (row % 3 == 1) & ~wrong if objects > 1 else torch.zeros(count, dtype=torch.bool)
    answers = labels.flip(1).clone()
    absent = [[number for number in range(CLASSES) if number not in row] for row in labels.tolist()]
    missing = torch.tensor([row[:objects] for row in absent])
    answers[wrong] = missing[wrong]
    answers[half, 0] = missing[half, 0]
    return AnsweredSet(images, labels, answers, int((~wrong & ~half).sum()))


class AnsweringModel(nn.Module):
    """Finds each image in the set and returns its prepared answer; records which images it was given, in which mode."""

    def __init__(self, data: AnsweredSet) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.data = data
        self.index = {_key(image): number for number, image in enumerate(data.images)}
        self.seen: list[int | None] = []
        self.seen_in_training_mode = 0

    def forward(self, images: Tensor, labels: Tensor | None = None, trace: bool = False) -> ModelOutput:
        rows = [self.index.get(_key(image)) for image in images]
        self.seen += rows
        self.seen_in_training_mode += len(rows) * self.training
        lengths = torch.full((len(images), CLASSES), 0.05)
        for position, row in enumerate(rows):
            if row is not None:
                # Both digits of an answer have nearly the same length, in random order.
                lengths[position, self.data.answers[row]] = 0.9 + 0.01 * torch.arange(self.data.objects)
        lengths = lengths.to(images.device) * self.scale
        capsules = lengths[..., None] * torch.tensor([0.6, 0.8], device=images.device)
        several = self.data.objects > 1 or (labels is not None and labels.ndim == 2)
        reconstruction = images[:, None].repeat(1, self.data.objects, 1, 1, 1) if several else images
        return ModelOutput(lengths, capsules, reconstruction=reconstruction)


def _key(image: Tensor) -> bytes:
    return image.detach().cpu().contiguous().numpy().tobytes()


def check_evaluation(evaluate: Evaluate, *, objects: tuple[int, ...] = (1, 2)) -> None:
    """Every test image counts once, unaltered, whatever the batch size; two digits are right only together."""
    for count in objects:
        data = answered_set(count)
        for size in BATCH_SIZES:
            _check_scores(evaluate, data, size)


def _check_scores(evaluate: Evaluate, data: AnsweredSet, size: int) -> None:
    model = AnsweringModel(data)
    what = f"evaluation of {len(data)} images with {data.objects} labels each at a batch size of {size}"
    with must_run(what):
        result = evaluate(model, data, batch_size=size)
    altered = model.seen.count(None)
    require(altered == 0, f"{what}: {altered} images did not reach the model as they are in the test set")
    distinct = len(set(model.seen))
    require(
        len(model.seen) == distinct == len(data),
        f"{what}: the model was shown {len(model.seen)} images, {distinct} of them different",
    )
    require(model.seen_in_training_mode == 0, f"{what}: the model was in training mode")
    require(result["images"] == len(data), f"{what}: it says there were {result['images']} images")
    accuracy, expected = float(result["accuracy"]), data.right / len(data)  # pyright: ignore[reportArgumentType]
    require(abs(accuracy - expected) < 1e-6, f"{what}: accuracy {accuracy:.6f} instead of {expected:.6f}")


def check_test_set(data: ScoredSet, split: ImageSet | None = None) -> None:
    """Every image once, in the same order at each reading, for every batch size.

    With the `split` that the set consists of, also: unaltered.
    """
    first = [torch.cat(column) for column in zip(*data.batches(64), strict=True)]
    images, labels, _ = first
    require(len(images) == len(data), f"batches of {data.name} hold {len(images)} images, it has {len(data)}")
    require(
        list(labels.shape) == [len(data), data.objects],
        f"labels of {data.name} are {list(labels.shape)} instead of {[len(data), data.objects]}",
    )
    if split is not None:
        require(same_bytes(labels, split.labels[:, None]), f"labels of {data.name} are not those of {split.name}")
        altered = int((images != to_float(split.images)).flatten(1).any(1).sum())
        require(altered == 0, f"{altered} of {len(images)} images of {data.name} are not as they are in {split.name}")
    for size in (64, 7):
        again = [torch.cat(column) for column in zip(*data.batches(size), strict=True)]
        for name, one, other in zip(Batch._fields, first, again, strict=True):
            require(same_bytes(one, other), f"{name} of {data.name} differ when read again in batches of {size}")


def check_pair_metric(metric: PairMetric) -> None:
    """An image is right if its two longest capsules are the two labels in any order; one of two counts as wrong."""
    lengths = torch.full((6, CLASSES), 0.1)
    lengths[:, 3], lengths[:, 7] = 0.8, 0.9
    labels = torch.tensor([[3, 7], [7, 3], [3, 5], [5, 7], [1, 2], [7, 8]])
    expected = [True, True, False, False, False, False]
    with must_run("metric for two digits"):
        found = [float(value) for value in metric(lengths, labels)]
    for value, right, pair in zip(found, expected, labels.tolist(), strict=True):
        require(
            value == float(right),
            f"capsules 3 and 7 are longest and the labels are {pair}: scored {value:g}, not {right:d}",
        )


def check_selection(train: Train, train_set: ImageSet, test_set: ImageSet, *, scrambles: int = 3) -> None:
    """Nothing is selected on the test set: with its labels permuted, training gives exactly the same weights."""
    weights = _trained(train, train_set, test_set)
    changed = _changed(weights, _trained(train, train_set, test_set))
    require(
        not changed, f"training twice on the same data gives different weights ({changed}): selection cannot be seen"
    )
    for shift in range(1, scrambles + 1):
        labels = (test_set.labels + shift) % len(test_set.classes)
        changed = _changed(weights, _trained(train, train_set, replace(test_set, labels=labels)))
        require(
            not changed, f"the weights depend on the labels of the test set ({changed}): it was used to select them"
        )
    blank = replace(test_set, images=255 - test_set.images)
    changed = _changed(weights, _trained(train, train_set, blank))
    require(not changed, f"the weights depend on the images of the test set ({changed})")


def _trained(train: Train, train_set: ImageSet, test_set: ImageSet) -> dict[str, Tensor]:
    with must_run("training"):
        return {name: tensor.detach().clone() for name, tensor in train(train_set, test_set).items()}


def _changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    """How many tensors differ, and the first of them; empty if none does."""
    names = [name for name in before | after if not same_bytes(before[name], after[name])]
    return f"{len(names)} of {len(before)} tensors, {names[0]} first" if names else ""
