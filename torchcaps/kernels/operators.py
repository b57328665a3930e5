"""Functions as operators of PyTorch, so that `torch.compile`, autograd and `opcheck` know them.

`torch.library.custom_op` does the same and more: at its first call it imports the whole compiler, a second or more that
every training would wait for. What is left out is only its guard against being traced into, which these do not need.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("torchcaps", "FRAGMENT")


def operator(
    name: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., Any] | None = None,
    schema: str | None = None,
) -> Any:
    """`torchcaps::name` for tensors on the CPU; `fake` makes results of the right shapes without numbers.

    The schema is that of the signature of `compute`, if none is given.
    """
    _LIBRARY.define(name + (schema or torch.library.infer_schema(compute, mutates_args=())))
    _LIBRARY.impl(name, compute, "CPU")
    torch.library.register_fake(f"torchcaps::{name}", fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"torchcaps::{name}", backward, setup_context=setup_context, lib=_LIBRARY)
    return getattr(torch.ops.torchcaps, name).default


class _Kept:
    """What a function keeps from one pass to the other, where autograd does not call them."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Tensor | None, ...] = ()

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


def both_passes(
    function: type[torch.autograd.Function], wanted: tuple[bool, bool], grad: Tensor, *inputs: Any
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the first two inputs, in the backward pass of an operator, which has no forward's to use."""
    kept = _Kept(wanted)
    function.forward(kept, *inputs)
    grads = function.backward(kept, grad)
    return grads[0], grads[1]
