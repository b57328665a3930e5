"""What was computed from a parameter, kept until the parameter changes."""

import ctypes
from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from torchcaps.kernels import native

T = TypeVar("T")
CHUNK = 1 << 15
"""As in `checksum.c`."""

_known = WeakTensorKeyDictionary()


def remembered(parameter: Float[Tensor, "n m h w"], name: object, compute: Callable[[Tensor], T]) -> T:
    """`compute(parameter)`, or what it returned last time for the same name and values.

    Version and address notice every change but one through `parameter.data`; a checksum of all values notices that. It
    takes as long as reading them: a tenth of what any use of them takes.
    """
    values = parameter.detach()
    sums = checksum(values)
    state = (-1 if values.is_inference() else values._version, values.data_ptr(), name)
    known = _known.get(parameter)
    if known is None or known[0] != state or not torch.equal(known[1], sums):
        known = _known[parameter] = (state, sums, compute(values))
    return known[2]


def checksum(values: Float[Tensor, "n m h w"]) -> Tensor:
    """Changes with every change of the values; without the C loop, with nearly every one."""
    library = native.library("checksum") if values.device.type == "cpu" and values.is_contiguous() else None
    if library is None:
        return torch.cat([values[::4, ::4, 0, 0].flatten(), values.sum().reshape(1)])
    count = values.nbytes // 4
    sums = torch.empty(-(-count // CHUNK), dtype=torch.int64)
    function = library.checksum
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p], None
    function(values.data_ptr(), count, sums.data_ptr())
    return sums
