"""Which kernel runs where."""

import os
from typing import Literal, get_args

import torch

from torchcaps.errors import UserError

Mode = Literal["plain", "fast", "auto"]
VARIABLE = "TORCHCAPS_KERNELS"


def mode() -> Mode:
    """`TORCHCAPS_KERNELS`: the plain twins, the kernels wherever they can, or whichever measures best."""
    value = os.environ.get(VARIABLE) or "auto"
    if value not in get_args(Mode):
        raise UserError(f"{VARIABLE} must be plain, fast or auto, not '{value}'")
    return value  # pyright: ignore[reportReturnType]


def traced() -> bool:
    """Whether somebody is looking at operators instead of numbers: export, compilation, `torch.func`."""
    return (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )
