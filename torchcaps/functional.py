"""The mathematics of capsules as pure functions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Inside every square root, so that an all-zero capsule has a finite gradient; 1e-12 moves no length above 1e-6.
EPSILON = 1e-12


def length(poses: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
    """Euclidean length, differentiable at zero."""
    return torch.sqrt(poses.square().sum(-1) + EPSILON)


def squash(s: Float[Tensor, "*n d"]) -> Float[Tensor, "*n d"]:
    """Eq. 1 of Sabour et al. 2017: `v = |s|² / (1 + |s|²) · s / |s|`, over the vector axis.

    >>> squash(torch.tensor([3.0, 4.0])).norm().item()  # 25 / 26
    0.961538...
    """
    squared = s.square().sum(-1, keepdim=True)
    return s * (torch.sqrt(squared + EPSILON) / (1 + squared))


def votes(poses: Float[Tensor, "b i p"], weight: Float[Tensor, "i j d p"]) -> Float[Tensor, "b i j d"]:
    """Eq. 2: every child's prediction of every parent, `û[j|i] = W[i, j] u[i]`."""
    return torch.einsum("bip,ijdp->bijd", poses, weight)


def present(labels: Int[Tensor, "b k"], classes: int) -> Float[Tensor, "b j"]:
    """T of Eq. 4: 1 for each class in the image, 0 for the others."""
    return torch.zeros(len(labels), classes, device=labels.device).scatter_(1, labels, 1.0)


def mask(poses: Float[Tensor, "b j d"], labels: Int[Tensor, "b k"]) -> Float[Tensor, "b k jd"]:
    """For each label a copy of the layer in which every other capsule is zero: what the decoder sees."""
    chosen = torch.nn.functional.one_hot(labels, poses.shape[1]).to(poses.dtype)
    return (chosen.unsqueeze(-1) * poses.unsqueeze(1)).flatten(2)
