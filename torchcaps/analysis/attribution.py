"""Which parts of an image were routed to a class: what primary capsules sent to it, over the pixels they see."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.core.types import ModelOutput, capsules_of
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.matrix import MatrixCaps

SAMPLES = 2
# Of the largest coverage: pixels at the rim, which hardly any capsule sees, fade out below it.
LEAST_COVERAGE = 0.02


def grid_of(model: CapsNet | MatrixCaps) -> tuple[int, int, int]:
    """Types, rows and columns of the last capsules that have a place in the image."""
    return model.classes.grid if isinstance(model, MatrixCaps) else model.grid


def receptive_fields(model: CapsNet | MatrixCaps, samples: int = SAMPLES) -> Float[Tensor, "y x h w"]:
    """How much the capsules at each place of the grid depend on each pixel that is seen; a field sums to 1.

    The effective receptive field of Luo et al. 2016, who find it Gaussian: here a Gaussian with the centre and spread
    of a place's squared gradients. Measured on noise, not derived from kernels, so that it holds for any backbone.
    """
    _, rows, columns = grid_of(model)
    squared = _squared_gradients(model, rows * columns, samples)
    squared = squared / squared.sum((1, 2), keepdim=True).clamp(min=1e-30)
    vertical, horizontal = (_gaussian(squared.sum(axis)) for axis in (2, 1))
    return (vertical.unsqueeze(2) * horizontal.unsqueeze(1)).unflatten(0, (rows, columns))


def _squared_gradients(model: CapsNet | MatrixCaps, places: int, samples: int) -> Float[Tensor, "n h w"]:
    """Of random combinations of a place's channels with respect to the pixels, summed over images of noise."""
    device = next(model.parameters()).device
    seen = model.config.image if isinstance(model, MatrixCaps) else model.seen
    at = torch.arange(places, device=device)
    # Drawn on the processor wherever the model is: the same noise, the same fields.
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(places, *seen[1:], device=device)
    with torch.enable_grad():
        for _ in range(samples):
            noise = torch.rand(1, *seen, generator=generator).to(device)
            images = noise.repeat(places, 1, 1, 1).requires_grad_()
            maps = _channels(model, images)
            mixture = torch.randn(maps.shape[1], generator=generator).to(device)
            (gradient,) = torch.autograd.grad((maps[at, :, at] @ mixture).sum(), images)
            total += gradient.square().sum(1)
    return total


def _channels(model: CapsNet | MatrixCaps, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k n"]:
    """What the capsules at each place are made of: the convolution below the primary ones, or poses above them."""
    if isinstance(model, MatrixCaps):
        poses = model.features(images).poses
    elif len(model.conv):
        poses = model.conv(model.primary(model.backbone(images))).poses
    else:
        return model.primary.conv(model.backbone(images)).flatten(2)
    return poses.permute(0, 1, 4, 2, 3).flatten(1, 2).flatten(2)


def _gaussian(shares: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
    """The normal distribution with the same mean and variance, on the same pixels."""
    at = torch.arange(shares.shape[1], dtype=shares.dtype, device=shares.device)
    mean = shares @ at
    variance = (shares * (at - mean.unsqueeze(1)).square()).sum(1).clamp(min=0.25)
    return (-(at - mean.unsqueeze(1)).square() / (2 * variance.unsqueeze(1))).softmax(1)


@torch.no_grad()
def couplings_to_classes(
    model: CapsNet | MatrixCaps,
    images: Float[Tensor, "1 c h w"],
    output: ModelOutput,
    corner: Int64[Tensor, "1 2"] | None = None,
) -> tuple[Float[Tensor, "i j"], Float[Tensor, "i"]]:
    """How each capsule with a place in the image is coupled to each class in the last iteration, and its activation.

    `output` is the traced answer. Through hidden layers, the couplings of all layers are multiplied: what a capsule
    sends to a parent is shared out again by that parent.
    """
    assert output.trace is not None
    assert output.children is not None
    couplings, children = output.trace.couplings[-1, 0], output.children
    if isinstance(model, CapsNet) and len(model.hidden):
        children = layer_input = capsules_of(model.capsule_map(images, corner))
        steps = []
        for layer in model.hidden:
            layer_input = layer(layer_input, trace=True)
            steps.append(layer_input.trace.couplings[-1, 0])
        couplings = torch.linalg.multi_dot([*steps, couplings])
    return couplings, children.activations[0]


@torch.no_grad()
def sent(
    couplings: Float[Tensor, "i j"], activations: Float[Tensor, "i"], grid: tuple[int, int, int]
) -> Float[Tensor, "j y x"]:
    """What the capsules at each place send to each parent: coupling times activation, over their types."""
    return (couplings * activations.unsqueeze(1)).unflatten(0, grid).sum(0).permute(2, 0, 1)


def heat(
    amounts: Float[Tensor, "j y x"], fields: Float[Tensor, "y x h w"], least: float = LEAST_COVERAGE
) -> Float[Tensor, "j h w"]:
    """For each pixel the mean amount of the places that see it, weighted by how well they do.

    A sum instead of the mean would be hottest in the middle of every image, which the most fields cover.
    """
    coverage = fields.sum((0, 1))
    return torch.einsum("jyx,yxhw->jhw", amounts, fields) / coverage.clamp(min=least * float(coverage.max()))
