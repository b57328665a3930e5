"""Images in memory: read in order for testing, as a pure function of seed and step for training."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from torchcaps.data.sets import Batch, ImageSet, ImageStream, generator_for
from torchcaps.testing import check_reconstruction_targets, check_test_set


def numbered(count: int = 50, classes: int = 5) -> ImageSet:
    """Images that can be told apart: image n has its number in its pixels."""
    images = torch.arange(count, dtype=torch.uint8).reshape(-1, 1, 1, 1).repeat(1, 1, 4, 4)
    return ImageSet("numbered", images, torch.arange(count) % classes, tuple("abcde"[:classes]))


def numbers(batch: Batch) -> list[int]:
    return (batch.images[:, 0, 0, 0] * 255).round().int().tolist()


def test_a_set_is_read_once_and_in_order() -> None:
    data = numbered()
    check_test_set(data)
    batches = list(data.batches(16))
    assert [len(batch.images) for batch in batches] == [16, 16, 16, 2]
    assert [number for batch in batches for number in numbers(batch)] == list(range(50))
    for batch in batches:
        check_reconstruction_targets(batch)
        check_reconstruction_targets(batch._replace(images=(batch.images - 0.13) / 0.31))
        with pytest.raises(AssertionError, match="not the image that was shown"):
            check_reconstruction_targets(batch._replace(images=batch.images.flip(0)))


def test_a_test_set_that_alters_its_images_is_noticed() -> None:
    class Shifted(ImageSet):
        def batches(self, size: int) -> Iterator[Batch]:
            for batch in super().batches(size):
                yield batch._replace(images=batch.images.roll(1, 3))

    split = numbered()
    split.images[:, :, 0] = 0
    split.images[:, :, :, 0] = 0
    check_test_set(split, split)
    shifted = Shifted(split.name, split.images, split.labels, split.classes)
    check_test_set(shifted)
    with pytest.raises(AssertionError, match="not as they are in"):
        check_test_set(shifted, split)


@pytest.mark.parametrize("held_out", [0, 5, 10, 13])
def test_split_shares_out_every_image_once(held_out: int) -> None:
    training, kept = numbered().split(held_out)
    assert len(kept) == held_out
    both = torch.cat([training.images, kept.images])[:, 0, 0, 0]
    assert sorted(both.tolist()) == list(range(50))


def test_split_takes_the_same_share_of_every_class_and_not_the_first() -> None:
    kept = numbered().split(10)[1]
    assert torch.bincount(kept.labels).tolist() == [2, 2, 2, 2, 2]
    assert kept.images[:, 0, 0, 0].tolist() != list(range(10))
    assert torch.equal(kept.images, numbered().split(10)[1].images)
    assert not torch.equal(kept.images, numbered().split(10, seed=1)[1].images)


def test_a_stream_shows_every_image_once_an_epoch_in_a_new_order() -> None:
    stream = ImageStream(numbered(), seed=3)
    shown = [number for step in range(15) for number in numbers(stream.batch(step, 10))]
    epochs = [shown[:50], shown[50:100], shown[100:]]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != list(range(50))


def augment(images: Tensor, generator: Generator) -> Tensor:
    return images.float() / 255 * torch.rand(len(images), 1, 1, 1, generator=generator)


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    first, second = (ImageStream(numbered(), 3, augment) for _ in range(2))
    second.batch(0, 10)
    torch.rand(5)
    for one, other in zip(first.batch(7, 10), second.batch(7, 10), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first.batch(7, 10).images, first.batch(8, 10).images)
    assert not torch.equal(first.batch(7, 10).images, ImageStream(numbered(), 4, augment).batch(7, 10).images)


def test_each_step_augments_anew() -> None:
    alike = replace(numbered(), images=torch.full((50, 1, 4, 4), 255, dtype=torch.uint8))
    stream = ImageStream(alike, 0, augment)
    shades = {stream.batch(step, 10).images[0, 0, 0, 0].item() for step in range(12)}
    assert len(shades) == 12


def test_labels_follow_their_images() -> None:
    batch = ImageStream(numbered(), seed=0).batch(2, 20)
    assert batch.labels[:, 0].tolist() == [number % 5 for number in numbers(batch)]
    check_reconstruction_targets(batch)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_shares_of_all_processes_are_the_batch(world: int) -> None:
    whole = ImageStream(numbered(), seed=0).batch(0, 16)
    shares = [whole.part(rank, world) for rank in range(world)]
    for column, parts in zip(whole, zip(*shares, strict=True), strict=True):
        assert torch.equal(column, torch.cat(parts))


def test_generators_of_different_places_differ() -> None:
    places = [(0,), (1,), (0, 0), (1, 0), (0, 0, 0), (0, 1), (1, 1), (0, 1, 1)]
    assert len({torch.rand((), generator=generator_for(*place)).item() for place in places}) == len(places)
