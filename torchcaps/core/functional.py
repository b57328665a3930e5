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
    """For each label a copy of the layer with all other capsules set to zero: the input of the decoder."""
    chosen = torch.nn.functional.one_hot(labels, poses.shape[1]).to(poses.dtype)
    return (chosen.unsqueeze(-1) * poses.unsqueeze(1)).flatten(2)


def matrix_transform(weight: Float[Tensor, "*n s s"]) -> Float[Tensor, "*n d d"]:
    """The product `vote = pose · W` of matrix capsules as one matrix for poses stored row by row: I ⊗ Wᵀ."""
    side = weight.shape[-1]
    rows = torch.eye(side, dtype=weight.dtype, device=weight.device)
    return torch.einsum("ax,...bc->...acxb", rows, weight).flatten(-4, -3).flatten(-2)


def coordinates(height: int, width: int) -> Float[Tensor, "h w 2"]:
    """Row and column of each position of a map, scaled to -0.5 .. 0.5.

    Their mean is zero, so they cancel when a routing adds up the votes of the whole map.
    """
    y, x = ((torch.arange(size) + 0.5) / size - 0.5 for size in (height, width))
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), 2)


def standardise(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
    """Each image scaled to mean 0 and variance 1; a constant image becomes zeros."""
    variance, mean = torch.var_mean(images, (1, 2, 3), correction=0, keepdim=True)
    return (images - mean) * torch.rsqrt(variance + 1e-6)


def coupling_entropy(couplings: Float[Tensor, "*n j"]) -> Float[Tensor, "*n"]:
    """Entropy of a child's couplings: 0 if it sends to one parent, log j if it sends equally to j parents.

    >>> coupling_entropy(torch.tensor([0.25, 0.25, 0.25, 0.25])).exp().item()  # among four parents
    4.0
    """
    return torch.special.entr(couplings / couplings.sum(-1, keepdim=True)).sum(-1)
