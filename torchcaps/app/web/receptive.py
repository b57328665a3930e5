"""The position of each capsule that votes for the classes, in the image."""

from typing import NamedTuple

from torch import nn

from torchcaps.models.capsnet import CapsNet
from torchcaps.models.matrix import MatrixCaps
from torchcaps.nn.conv import ConvCaps


class Placement(NamedTuple):
    """In pixels: the centre of the first capsule, and the distance from one to the next."""

    start: float
    step: float


def grid_of(model: CapsNet | MatrixCaps) -> tuple[int, int, int]:
    """Types, rows and columns of the capsules that vote for the classes."""
    return model.grid if isinstance(model, CapsNet) else model.classes.grid


def placement(model: CapsNet | MatrixCaps, rows: int) -> Placement:
    """Follow the centre of the receptive field through the strides, kernels and paddings on the way."""
    start, step = 0.0, 1.0
    if isinstance(model, CapsNet):
        capsules, height = model.conv, model.seen[1]
    else:
        capsules, height = model.layers, model.config.image[1]
    for module in [*model.backbone.modules(), model.primary.conv, *capsules]:
        if isinstance(module, nn.PixelUnshuffle):
            factor = module.downscale_factor
            start, step = start + step * (factor - 1) / 2, step * factor
        elif isinstance(module, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            kernel, stride, padding = (_first(value) for value in (module.kernel_size, module.stride, module.padding))
            padding = (kernel - 1) / 2 if module.padding == "same" else padding
            start, step = start + step * ((kernel - 1) / 2 - padding), step * stride
        elif isinstance(module, ConvCaps):
            start, step = start + step * (module.kernel - 1) / 2, step * module.stride
    if start + step * (rows - 1) > height:
        return Placement(height / rows / 2 - 0.5, height / rows)
    return Placement(start, step)


def _first(value: object) -> float:
    return float(value[0]) if isinstance(value, tuple) else float(value) if isinstance(value, int) else 0.0
