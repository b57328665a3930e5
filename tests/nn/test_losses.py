"""Eq. 4 and the reconstruction loss, against the reference and against numbers worked out by hand."""

import numpy as np
import pytest
import reference as ref
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchcaps.nn.losses import RECIPES, RECONSTRUCTION_WEIGHT, margin_loss, reconstruction_loss
from torchcaps.testing import check_losses, check_margin_loss, check_reconstruction_loss

EXACT = {"rtol": 0, "atol": 1e-10}


def total(recipe: str, lengths: Tensor, present: Tensor, reconstruction: Tensor, targets: Tensor) -> Tensor:
    pixels = reconstruction_loss(reconstruction, targets)
    return RECIPES[recipe](lengths.shape[1]) * margin_loss(lengths, present) + RECONSTRUCTION_WEIGHT * pixels


@given(st.integers(1, 4), st.integers(2, 6), st.integers(0, 9))
def test_margin_loss_matches_reference(batch: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    values, present = random.random((batch, classes)), (random.random((batch, classes)) < 0.3).astype(float)
    lengths = torch.tensor(values, requires_grad=True)
    loss = margin_loss(lengths, torch.tensor(present))
    (slopes,) = torch.autograd.grad(loss, lengths)
    rows = list(zip(values, present, strict=True))
    np.testing.assert_allclose(loss.item(), ref.mean_over_batch([ref.margin_loss(*row) for row in rows]), **EXACT)
    np.testing.assert_allclose(slopes, [ref.margin_loss_backward(*row) / batch for row in rows], **EXACT)


def test_reconstruction_loss_matches_reference() -> None:
    random = np.random.default_rng(0)
    pictures, targets = random.random((3, 2, 1, 4, 5)), random.random((3, 2, 1, 4, 5))
    drawn = torch.tensor(pictures, requires_grad=True)
    loss = reconstruction_loss(drawn, torch.tensor(targets))
    (slopes,) = torch.autograd.grad(loss, drawn)
    rows = list(zip(pictures, targets, strict=True))
    expected = ref.mean_over_batch([ref.reconstruction_loss(*row) for row in rows])
    np.testing.assert_allclose(loss.item(), expected, **EXACT)
    np.testing.assert_allclose(slopes, [ref.reconstruction_loss_backward(*row) / 3 for row in rows], **EXACT)


def test_losses_conform() -> None:
    check_margin_loss(margin_loss)
    check_reconstruction_loss(reconstruction_loss)


# The released code's mean over the classes is over three here.
@pytest.mark.parametrize(("recipe", "weight"), [("paper", 0.0005), ("official", 0.0005 * 2 * 3)])
def test_recipes_weigh_reconstruction_as_their_source_does(recipe: str, weight: float) -> None:
    check_losses(lambda *inputs: total(recipe, *inputs), reconstruction_weight=weight)
