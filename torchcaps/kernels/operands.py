"""What the loops in C are given is checked before: they follow pointers, and a wrong shape would lead them astray."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check(name: str, tensor: Tensor | None, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
    """Raise ValueError unless the tensor is in main memory, of this shape and type. None is nothing to check."""
    if tensor is None:
        return
    if tensor.dtype != dtype or tensor.device.type != "cpu" or tensor.layout != torch.strided:
        found = f"{tensor.dtype} ({tensor.layout}) on {tensor.device}"
        raise ValueError(f"{name} must be {dtype} in main memory, not {found}")
    if tensor.shape != tuple(shape):
        raise ValueError(f"{name} must have the shape {tuple(shape)}, not {tuple(tensor.shape)}")


def check_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> None:
    """Raise ValueError unless `conv2d` of these has a result."""
    if x.ndim != 4 or weight.ndim != 4:
        raise ValueError(f"images and weights must have four axes, not {tuple(x.shape)} and {tuple(weight.shape)}")
    check("x", x, x.shape)
    check("weight", weight, (len(weight), x.shape[1], *weight.shape[2:]))
    check("bias", bias, (len(weight),))
    fits = all(0 < taps <= size + 2 * padding for size, taps in zip(x.shape[2:], weight.shape[2:], strict=True))
    if stride < 1 or padding < 0 or not fits:
        where = f"images of {tuple(x.shape[2:])} with stride {stride} and padding {padding}"
        raise ValueError(f"a kernel of {tuple(weight.shape[2:])} does not fit {where}")
