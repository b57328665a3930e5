"""Large buffers that are used again.

A fresh allocation of 100 MB costs more than the mathematics done in it: the system hands out zeroed pages one fault at
a time.
"""

import ctypes
import math
import sys
import threading

import torch
from torch import Tensor

KEPT = 4
# Of <malloc.h>: no allocation of its own mapping, which goes when it is freed; the heap does not shrink.
_MALLOPT = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_TOP_PAD": (-2, 1 << 26)}

_ARENA_MAX = -8

_free: list[Tensor] = []
_lock = threading.Lock()


def keep_freed_memory() -> None:
    """Ask the C library to use freed memory again instead of returning it to the system, for the whole process.

    Every command does; a program of your own may. Where the library is not glibc, nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter, value in _MALLOPT.values():
            mallopt(parameter, value)


def share_freed_memory() -> None:
    """One heap for all threads from now on: of a thread's own heap, `return_freed_memory` cannot return the end."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Ask the C library to return to the system, once, what is free now."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def take(*shape: int, like: Tensor) -> Tensor:
    """Uninitialised memory, which belongs to the caller until `give`; what is never given back is simply collected."""
    count = math.prod(shape)
    with _lock:
        fitting = [
            i for i, t in enumerate(_free) if t.dtype == like.dtype and t.device == like.device and t.numel() >= count
        ]
        found = _free.pop(min(fitting, key=lambda i: _free[i].numel())) if fitting else None
    if found is None:
        with torch.inference_mode(False):
            found = torch.empty(count, dtype=like.dtype, device=like.device)
    return found[:count].view(shape)


def give(*tensors: Tensor) -> None:
    """Nobody may read these any more. The largest few are kept."""
    # What is kept may be written to in a training, wherever it was used before.
    with torch.inference_mode(False):
        whole = [torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage()) for t in tensors]
    with _lock:
        _free.extend(whole)
        _free.sort(key=lambda t: t.nbytes, reverse=True)
        del _free[KEPT:]


def clear() -> None:
    """Gives everything back to the system."""
    with _lock:
        _free.clear()
