"""The losses of capsule networks.

All losses are sums over an image (classes, pixels) and means over the batch, as in the paper, so that its weights can
be used unchanged.
"""

from collections.abc import Callable

from jaxtyping import Float, Int
from torch import Tensor

from torchcaps.core.functional import EPSILON

RECIPES: dict[str, Callable[[int], float]] = {
    "paper": lambda classes: 1.0,
    # The released code halves the margin loss and averages it: with ten classes, reconstruction weighs 20 times more.
    "official": lambda classes: 0.5 / classes,
}
"""By its name the weight of the margin loss for so many classes."""
RECONSTRUCTION_WEIGHT = 0.0005


def margin_loss(
    lengths: Float[Tensor, "b j"],
    present: Float[Tensor, "b j"],
    *,
    m_plus: float = 0.9,
    m_minus: float = 0.1,
    absent_weight: float = 0.5,
) -> Float[Tensor, ""]:
    """Eq. 4 of Sabour et al. 2017: `T max(0, m⁺ - |v|)² + λ (1 - T) max(0, |v| - m⁻)²`, summed over classes."""
    missed = present * (m_plus - lengths).clamp(min=0).square()
    invented = (1 - present) * (lengths - m_minus).clamp(min=0).square()
    return (missed + absent_weight * invented).sum(1).mean()


def share_loss(shares: Float[Tensor, "b j"], present: Float[Tensor, "b j"]) -> Float[Tensor, ""]:
    """Negative log likelihood of shares that sum to one; of several present classes each should have an equal share."""
    targets = present / present.sum(1, keepdim=True)
    return -(targets * (shares + EPSILON).log()).sum(1).mean()


def reconstruction_loss(reconstruction: Float[Tensor, "b *n"], targets: Float[Tensor, "b *n"]) -> Float[Tensor, ""]:
    """Sum of squared differences over the pixels (of every digit, where an image has several)."""
    return (reconstruction - targets).square().flatten(1).sum(1).mean()


def spread_loss(lengths: Float[Tensor, "b j"], labels: Int[Tensor, "b"], margin: float = 0.9) -> Float[Tensor, ""]:
    """Hinton et al. 2018, Eq. 3: `Σ_{j≠t} max(0, m - (a_t - a_j))²`, the gap to the label's capsule t."""
    target = lengths.gather(1, labels[:, None])
    shortfall = (margin - (target - lengths)).clamp(min=0).square()
    # The label's own term is the constant m².
    return shortfall.scatter(1, labels[:, None], 0.0).sum(1).mean()
