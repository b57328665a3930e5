"""The losses of Sabour et al. 2017, compared with numbers computed by hand.

Losses are sums over classes and pixels and means over the batch. With other reductions the weight 0.0005 of the
reconstruction would not be the paper's, and no test of accuracy would show it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torchcaps.testing.core import must_run, require, require_close

MarginLoss = Callable[[Tensor, Tensor], Tensor]
ReconstructionLoss = Callable[[Tensor, Tensor], Tensor]
# loss(lengths [b j], present [b j], reconstruction [b c h w], targets [b c h w])
TotalLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

# Lengths of three capsules, which are present, and Eq. 4 of each worked out with m+ = 0.9, m- = 0.1, lambda = 0.5.
MARGIN_CASES = (
    ([0.9, 0.1, 0.1], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ([0.95, 0.05, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.81, 0.0, 0.0]),
    ([0.4, 0.6, 1.0], [1.0, 0.0, 0.0], [0.25, 0.125, 0.405]),
    ([0.7, 0.2, 0.3], [1.0, 1.0, 0.0], [0.04, 0.49, 0.02]),
)
SIDE = 28


def check_margin_loss(loss: MarginLoss) -> None:
    """Eq. 4: its value, its sum over classes, its mean over the batch, its slope."""
    totals = []
    for lengths, present, terms in MARGIN_CASES:
        value = _value(loss, torch.tensor([lengths]), torch.tensor([present]))
        totals.append(sum(terms))
        _require_value(value, sum(terms), f"margin loss of lengths {lengths}, present {present}")
    batch = [torch.tensor(column) for column in zip(*(case[:2] for case in MARGIN_CASES), strict=True)]
    value = _value(loss, *batch)
    _require_value(value, sum(totals) / len(totals), "margin loss of a batch is not the mean over its images")
    repeated = _value(loss, *(tensor.repeat(2, 1) for tensor in batch))
    _require_value(repeated, value, "margin loss changes when the batch is shown twice")
    lengths = torch.tensor([[0.4, 0.6]], requires_grad=True)
    with must_run("margin loss"):
        (slope,) = torch.autograd.grad(loss(lengths, torch.tensor([[1.0, 0.0]])), lengths)
    require_close(slope, torch.tensor([[-1.0, 0.5]]), "the slope of the margin loss at lengths [0.4, 0.6]", 1e-5)


def check_reconstruction_loss(loss: ReconstructionLoss) -> None:
    """Squared differences: their sum over pixels, their mean over the batch."""
    targets = torch.zeros(4, 1, SIDE, SIDE)
    half = torch.full_like(targets, 0.5)
    value = _value(loss, half, targets)
    _require_value(value, 0.25 * SIDE * SIDE, "reconstruction loss of an image that is off by 0.5 everywhere")
    _require_value(_value(loss, targets, half), value, "reconstruction loss is not symmetric")
    half[1:] = 0
    _require_value(_value(loss, half, targets), value / 4, "reconstruction loss is not the mean over the batch")
    one = targets.clone()
    one[:, 0, 3, 5] = 1
    _require_value(_value(loss, one, targets), 1.0, "reconstruction loss of one wrong pixel")


def check_losses(loss: TotalLoss, *, reconstruction_weight: float = 0.0005) -> None:
    """Margin and reconstruction in the paper's proportion: one wrong pixel weighs 0.0005 of a unit of Eq. 4."""
    lengths, present, terms = (torch.tensor(row)[None] for row in MARGIN_CASES[3])
    targets = torch.zeros(1, 1, SIDE, SIDE)
    wrong = targets.clone()
    wrong[0, 0, :10, :10] = 1.0
    perfect = torch.tensor([[0.9, 0.1, 0.1]])
    margin = _value(loss, lengths, present, targets, targets)
    reconstruction = _value(loss, perfect, present, wrong, targets)
    require(margin > 0, "a wrong length costs nothing")
    weight = reconstruction / 100 / (margin / terms.sum().item())
    factor = weight / reconstruction_weight
    require(
        abs(factor - 1) < 1e-3,
        f"reconstruction weighs {factor:.4g} times what it should against the margin loss: "
        f"{weight:.3g} for each wrong pixel instead of {reconstruction_weight:g}",
    )
    both = _value(loss, lengths, present, wrong, targets)
    _require_value(both, margin + reconstruction, "the loss is not the sum of margin and reconstruction")
    doubled = _value(
        loss, *(tensor.repeat(2, *[1] * (tensor.ndim - 1)) for tensor in (lengths, present, wrong, targets))
    )
    _require_value(doubled, both, "the loss changes when the batch is shown twice")


def _value(loss: Callable[..., Tensor], *inputs: Tensor) -> float:
    with must_run("loss"):
        value = loss(*inputs)
    require(value.ndim == 0, f"a loss of shape {list(value.shape)} instead of one number")
    return value.item()


def _require_value(value: float, expected: float, sentence: str) -> None:
    require(
        abs(value - expected) <= 1e-5 * max(1.0, abs(expected)), f"{sentence}: {value:.6g} instead of {expected:.6g}"
    )
