"""What was computed from a parameter, kept until the parameter changes."""

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")

_known = WeakTensorKeyDictionary()


def remembered(parameter: Float[Tensor, "n m h w"], name: object, compute: Callable[[Tensor], T]) -> T:
    """`compute(parameter)`, or what it returned last time for the same name and values.

    Version and address notice every change but one through `parameter.data`; the sum of the values and a sample of them
    notice that.
    """
    values = parameter.detach()
    sample = torch.cat([values[::4, ::4, 0, 0].flatten(), values.sum().reshape(1)])
    state = (-1 if values.is_inference() else values._version, values.data_ptr(), name)
    known = _known.get(parameter)
    if known is None or known[0] != state or not torch.equal(known[1], sample):
        known = _known[parameter] = (state, sample, compute(values))
    return known[2]
