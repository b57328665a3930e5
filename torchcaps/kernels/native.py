"""Loops in C, for what takes PyTorch a dozen passes over memory and a loop only one.

They are compiled when first needed, which takes about a second, and kept in the user's cache folder. Where there is no
compiler, everything works without them, slower. Their threads are PyTorch's own: the OpenMP that it brings is used, not
a second one beside it.
"""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.core.files import cache_folder
from torchcaps.core.machine import processor_features

# Sums may be reordered, as every BLAS does; what is not a number stays so.
FLAGS = ("-O3", "-march=native", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fPIC")


@lru_cache(maxsize=8)
def library(name: str) -> ctypes.CDLL | None:
    """The functions of `name`.c beside this file, or None where they cannot be had."""
    source = Path(__file__).with_name(f"{name}.c")
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        return None
    flags = (*FLAGS, "-fopenmp" if _share_openmp() else "-fopenmp-simd")
    known_by = hashlib.sha256(
        "\n".join([source.read_text(), *flags, compiler, processor_features()]).encode()
    ).hexdigest()[:16]
    try:
        path = cache_folder() / "native" / f"{name}-{known_by}.so"
        if not path.exists():
            _compile([compiler, *flags], source, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None


def loops(name: str, *tensors: Tensor) -> ctypes.CDLL | None:
    """The library, if these tensors are what its loops take: contiguous numbers of four bytes in main memory."""
    fitting = all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)
    return library(name) if fitting else None


def pointers(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    """What C takes; NULL for what there is not."""
    return [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]


def _share_openmp() -> bool:
    """Make the OpenMP library that PyTorch has loaded visible to ours."""
    try:
        loaded = re.search(r"/\S*libgomp\S*", Path("/proc/self/maps").read_text())
        return bool(loaded and ctypes.CDLL(loaded[0], ctypes.RTLD_GLOBAL))
    except OSError:
        return False


def _compile(command: list[str], source: Path, path: Path) -> None:
    """Beside, then renamed: two processes may do this at once. OpenMP is not linked: its symbols are there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part, whole = Path(folder) / "part.o", Path(folder) / path.name
        for arguments in ([*command, "-c", source, "-o", part], [command[0], "-shared", part, "-o", whole]):
            subprocess.run(arguments, check=True, capture_output=True, timeout=60)
        os.replace(whole, path)
