"""The position of each primary capsule in the image."""

from typing import NamedTuple

from torch import nn

from torchcaps.models.capsnet import CapsNet
from torchcaps.nn.conv import ConvCaps


class Placement(NamedTuple):
    """In pixels: the centre of the first capsule, and the distance from one to the next."""

    start: float
    step: float


def placement(model: CapsNet, rows: int) -> Placement:
    """Follow the centre of the receptive field through the strides, kernels and paddings on the way."""
    start, step = 0.0, 1.0
    for module in [*model.backbone.modules(), model.primary.conv, *model.conv]:
        if isinstance(module, nn.PixelUnshuffle):
            factor = module.downscale_factor
            start, step = start + step * (factor - 1) / 2, step * factor
        elif isinstance(module, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            kernel, stride, padding = (_first(value) for value in (module.kernel_size, module.stride, module.padding))
            padding = (kernel - 1) / 2 if module.padding == "same" else padding
            start, step = start + step * ((kernel - 1) / 2 - padding), step * stride
        elif isinstance(module, ConvCaps):
            start, step = start + step * (module.kernel - 1) / 2, step * module.stride
    height = model.seen[1]
    if start + step * (rows - 1) > height:
        return Placement(height / rows / 2 - 0.5, height / rows)
    return Placement(start, step)


def _first(value: object) -> float:
    return float(value[0]) if isinstance(value, tuple) else float(value) if isinstance(value, int) else 0.0
