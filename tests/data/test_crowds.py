"""Images of several digits: of the classes that were asked for, made of test digits, the same everywhere."""

import pytest
import torch

from torchcaps.core.errors import UserError
from torchcaps.data import images
from torchcaps.data.synthetic.crowds import Crowd


@pytest.mark.parametrize(("objects", "same"), [(1, False), (2, False), (2, True), (3, False), (3, True)])
def test_a_crowd_is_what_it_is_called(objects: int, same: bool) -> None:
    digits = images("mnist-mini", "test")
    crowd = Crowd(digits, objects, same, count=150)
    batch = next(crowd.batches(150))
    assert batch.images.shape == (150, 1, 36, 36)
    assert batch.targets.shape == (150, objects, 1, 36, 36)
    assert torch.equal(batch.images, batch.targets.sum(1).clamp(max=1))
    kinds = [len(set(row)) for row in batch.labels.tolist()]
    assert set(kinds) == ({1} if same else {objects})
    assert len(set(batch.labels.flatten().tolist())) == 10
    which, shifts = crowd.chosen
    assert all(len(set(row)) == objects for row in which.tolist()), "never the same image twice"
    assert torch.equal(digits.labels[which], batch.labels)
    assert shifts.amin() == -4
    assert shifts.amax() == 4
    some = torch.cat([part.images for part in Crowd(digits, objects, same, count=70).batches(32)])
    assert torch.equal(some, batch.images[:70])


def test_more_classes_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="no 11 different classes"):
        _ = Crowd(images("mnist-mini", "test"), 11).chosen
