"""Many matrix products at once, on processors that PyTorch's library does not use in full.

The plain twin is `torch.bmm`. PyTorch multiplies with a library of Intel's, which uses the widest vectors (AVX-512) on
Intel's own processors only; on others that have them, the loops in `products.c` take half of the time. The
choice depends on the processor alone, so that equal seeds give equal results on one machine.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.core.machine import processor
from torchcaps.kernels import native, operands


class _Sizes(ctypes.Structure):
    """As in `products.c`."""

    _names = "count rows columns depth a_by_matrix a_by_row a_by_depth b_by_matrix b_by_depth b_by_column threads"
    _fields_ = [(name, ctypes.c_long) for name in _names.split()]


def bmm(a: Float[Tensor, "f m k"], b: Float[Tensor, "f k n"], out: Float[Tensor, "f m n"]) -> Float[Tensor, "f m n"]:
    """`torch.bmm(a, b, out=out)`; `out` is contiguous, and nothing is differentiated."""
    if a.dtype == torch.float32 and a.device.type == "cpu" and is_used():
        return native_bmm(a, b, out)
    return torch.bmm(a, b, out=out)


@lru_cache(maxsize=1)
def is_used() -> bool:
    """Whether this processor has wide vectors that PyTorch's library leaves unused, and the loops are here."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkl.is_available()
    return wide and "Intel" not in processor() and native.library("products") is not None


def native_bmm(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    operands.check("a", a, a.shape)
    operands.check("b", b, (len(a), a.shape[2], b.shape[2]))
    operands.check("out", out, (*a.shape[:2], b.shape[2]))
    if not out.is_contiguous():
        raise ValueError("out must be contiguous")
    counts = (len(a), a.shape[1], b.shape[2], a.shape[2])
    _loop()(_Sizes(*counts, *a.stride(), *b.stride(), torch.get_num_threads()), *native.pointers(a, b, out))
    return out


@lru_cache(maxsize=1)
def _loop() -> Any:
    library = native.library("products")
    assert library is not None, "is_used() was not asked"
    library.products.argtypes, library.products.restype = [_Sizes, *[ctypes.c_void_p] * 3], None
    return library.products
