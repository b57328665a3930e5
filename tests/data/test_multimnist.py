"""Overlapping digits: the two rules, the stream that never repeats, the test set that never changes."""

import pytest
import torch

from torchcaps import data as named
from torchcaps.core.errors import UserError
from torchcaps.data.sets import ImageSet
from torchcaps.data.synthetic import multimnist
from torchcaps.data.synthetic.multimnist import RULES, Digits, PairSet, PairStream, box_iou
from torchcaps.data.transforms import Augmentation, bounding_boxes
from torchcaps.testing import check_pairs, check_test_set

OVERLAY = {name: rule.overlay for name, rule in RULES.items()}


@pytest.fixture(scope="module")
def split() -> ImageSet:
    """Strokes of ink in a 20x20 box on 28x28, as MNIST has them."""
    random = torch.Generator().manual_seed(0)
    images = torch.zeros(120, 1, 28, 28, dtype=torch.uint8)
    for image in images:
        top, left = torch.randint(4, 7, (2,), generator=random).tolist()
        height, width = torch.randint(14, 19, (2,), generator=random).tolist()
        image[0, top : top + height, left : left + width] = torch.randint(
            1, 256, (height, width), dtype=torch.uint8, generator=random
        )
    return ImageSet("strokes", images, torch.arange(120) % 10, tuple("0123456789"))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("pool", [None, 100])
def test_training_pairs_conform(name: str, pool: int | None, split: ImageSet) -> None:
    stream = PairStream(Digits(split, RULES[name]), seed=1, pool=pool)
    check_pairs(stream, split, overlay=OVERLAY[name])


@pytest.mark.parametrize("name", RULES)
def test_test_pairs_conform(name: str, split: ImageSet) -> None:
    data = PairSet(name, Digits(split, RULES[name]), count=150)
    check_pairs(data, split, overlay=OVERLAY[name])
    check_test_set(data)
    assert data.objects == 2


def test_every_digit_is_the_first_of_equally_many_pairs(split: ImageSet) -> None:
    source = Digits(split, RULES["multimnist-stratified"])
    stream = PairStream(source, seed=0)
    for epoch in range(2):
        drawn = [stream.batch(6 * epoch + step, 20) for step in range(6)]
        shown = torch.cat([batch.targets[:, 0] for batch in drawn])
        ink = [sorted(images.sum((1, 2, 3)).tolist()) for images in (shown, split.images / 255)]
        assert ink[0] == pytest.approx(ink[1])
    tested = PairSet("test", source, 3 * len(split))
    assert (tested.pairs.digits[:, 0].bincount() == 3).all()
    fewer = PairSet("test", source, 50)
    assert torch.equal(fewer.pairs.shifts, tested.pairs.shifts[:50])
    assert torch.equal(fewer.pairs.digits, tested.pairs.digits[:50])


def test_noise_is_in_the_image_and_not_in_the_digits(split: ImageSet) -> None:
    source = Digits(split, RULES["multimnist"])
    clean = PairStream(source, seed=0).batch(0, 50)
    noisy = PairStream(source, seed=0, augment=Augmentation(noise=0.1)).batch(0, 50)
    assert torch.equal(clean.targets, noisy.targets)
    assert (clean.images - noisy.images).abs().amax((1, 2, 3)).min() > 0


def test_boxes_and_their_overlap() -> None:
    images = torch.zeros(2, 6, 6, dtype=torch.uint8)
    images[0, 1:4, 2:6] = 1
    images[1, 2:4, 0:4] = 1
    boxes = bounding_boxes(images > 0)
    assert boxes.tolist() == [[1, 2, 4, 6], [2, 0, 4, 4]]
    assert box_iou(boxes[:1], boxes[1:]).item() == pytest.approx(4 / (12 + 8 - 4))
    assert box_iou(boxes[:1], boxes[:1]).item() == 1
    assert box_iou(boxes[:1], boxes[:1] + 10).item() == 0


def test_the_second_rule_keeps_only_boxes_that_overlap(split: ImageSet) -> None:
    batch = PairStream(Digits(split, RULES["multimnist-iou80"]), seed=0).batch(0, 200)
    ink = batch.targets[:, :, 0] > 0
    overlap = box_iou(bounding_boxes(ink[:, 0]), bounding_boxes(ink[:, 1]))
    assert overlap.min() >= 0.8


def test_boxes_of_a_fixed_size_overlap_by_their_shifts_alone(split: ImageSet) -> None:
    digits = Digits(split, RULES["multimnist-iou80-box20"])
    assert digits.boxes.tolist() == [[4, 4, 24, 24]] * len(split)
    apart = digits.sample(3000, torch.Generator().manual_seed(0)).shifts.diff(dim=1)[:, 0].abs()
    near = {tuple(sorted(pixels)) for pixels in apart.tolist()}
    assert near == {(0, 0), (0, 1), (1, 1), (0, 2)}, "19 x 19 of 439 pixels still are 0.82 of them, 18 x 19 are not"


def test_shifts_reach_every_corner_of_the_canvas(split: ImageSet) -> None:
    digits = Digits(split, RULES["multimnist"])
    shifts = digits.sample(4000, torch.Generator().manual_seed(0)).shifts
    assert digits.canvas == (36, 36)
    for axis in range(2):
        counts = torch.bincount(shifts[..., axis].flatten() + 4)
        assert len(counts) == 9
        assert counts.min() > 0.8 * counts.max()


def test_a_batch_depends_on_seed_and_step_alone(split: ImageSet) -> None:
    digits = Digits(split, RULES["multimnist"])
    first = PairStream(digits, seed=1).batch(3, 32)
    again = PairStream(Digits(split, RULES["multimnist"]), seed=1).batch(3, 32)
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, PairStream(digits, seed=1).batch(4, 32).images)
    assert not torch.equal(first.images, PairStream(digits, seed=2).batch(3, 32).images)


def test_a_pool_repeats_and_an_endless_stream_does_not(split: ImageSet) -> None:
    digits = Digits(split, RULES["multimnist"])

    def different(stream: PairStream) -> int:
        return len({image.numpy().tobytes() for step in range(4) for image in stream.batch(step, 50).images})

    assert different(PairStream(digits, seed=0, pool=30)) <= 30
    assert different(PairStream(digits, seed=0, pool=200)) == 200, "each once in an epoch"
    assert different(PairStream(digits, seed=0, pool=100)) == 100, "and again in the next, in another order"
    assert different(PairStream(digits, seed=0)) == 200


def test_the_test_set_is_pinned_and_begins_the_same_at_any_size(split: ImageSet) -> None:
    small, large = (PairSet("multimnist", Digits(split, RULES["multimnist"]), count=count) for count in (50, 80))
    for some, more in zip(small.pairs, large.pairs, strict=True):
        assert torch.equal(some, more[:50])
    assert small.sha256() == "0905677d58dba28414678b3e1fef9e3f742e9949e9312d1b86a7612ca31ab2f5"


def test_the_shares_of_the_digits_are_those_that_are_written() -> None:
    for name in ("multimnist", "multimnist-iou80", "multimnist-iou80-box20"):
        if not named.DATA[name].is_here():
            pytest.skip("MNIST is not fetched")
        test = named.load_test_set(name)
        assert isinstance(test, PairSet)
        labels = test.source.images.labels[test.pairs.digits]
        shares = [100 * (labels == k).any(1).double().mean().item() for k in range(10)]
        (line,) = [line.split() for line in str(multimnist.__doc__).splitlines() if line.split()[:1] == [name]]
        assert [float(share) for share in line[1:]] == pytest.approx(shares, abs=0.051)


def test_digits_that_make_no_pair_are_refused() -> None:
    digits = named.images("mnist-mini", "test").take(torch.tensor([0]))
    with pytest.raises(UserError, match="make no pairs"):
        Digits(digits, RULES["multimnist"]).sample(8, torch.Generator().manual_seed(0))


def test_both_digits_of_a_pair_are_augmented_alike() -> None:
    data = named.resolve("multimnist-mini")
    images = data.images("train")
    plain, turned = (
        data.stream(images, 3, augment=a).batch(5, 16) for a in (None, Augmentation(rotation=15, part=0.5))
    )
    assert torch.equal(plain.labels, turned.labels)
    same = (plain.images == turned.images).flatten(1).all(1)
    assert 0 < same.sum() < 16, "a part of the pairs is changed"
    torch.testing.assert_close(turned.images, turned.targets.sum(1).clamp(max=1))
    assert torch.equal(
        turned.images, data.stream(images, 3, augment=Augmentation(rotation=15, part=0.5)).batch(5, 16).images
    )
