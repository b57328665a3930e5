"""Loops in C, for what takes PyTorch a dozen passes over memory and a loop only one.

They come with the package, compiled for several levels of processors. Where they do not (a source checkout that was
never installed, an edited source, a package built without a compiler), all of them are compiled at first use, in a few
seconds that are announced, and kept in the user's cache folder. Where that fails too, everything works without them,
slower; the reason is logged once and remembered, so that the next start does not try again. Their threads are
PyTorch's own: the OpenMP that it brings is used, not a second one beside it.
"""

import ctypes
import logging
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from torchcaps.core.files import cache_folder
from torchcaps.kernels import cache, compiler
from torchcaps.kernels.compiler import CompileError

Result = TypeVar("Result")

log = logging.getLogger("torchcaps")
_lock = threading.RLock()
_states: dict[str, "Loaded"] = {}
_told: set[str] = set()


class Loaded(NamedTuple):
    """What became of the loops of one source."""

    functions: ctypes.CDLL | None
    origin: str
    """"package", "cache", "compiled" (into the cache, by this process), or "missing"."""
    level: str = ""
    openmp: bool = False
    path: str = ""
    reason: str = ""


@lru_cache(maxsize=32)
def library(name: str) -> ctypes.CDLL | None:
    """The functions of `name`.c beside this file, or None where they cannot be had."""
    with _lock:
        _states[name] = _load(name)
        return _states[name].functions


def pointers(*tensors: Tensor | None) -> list[ctypes.c_void_p]:
    """What C takes; NULL for what there is not."""
    return [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]


def state(name: str) -> Loaded:
    library(name)
    return _states[name]


def _load(name: str) -> Loaded:
    usable = _usable_levels()
    shared = _share_openmp()
    for level in usable:
        for openmp in (True, False) if shared else (False,):
            path = compiler.PACKAGED / f"{compiler.stem(name, level, openmp)}.so"
            if path.exists():
                try:
                    return Loaded(ctypes.CDLL(str(path)), "package", level, openmp, str(path))
                except OSError as error:
                    _tell(logging.WARNING, "a library of the package cannot be loaded", str(error))
    try:
        return _from_cache(name, usable[0], shared)
    except CompileError as error:
        return Loaded(None, "missing", reason=str(error))
    except OSError as error:
        _tell(logging.WARNING, "the C loops are not used, PyTorch does their work, slower", str(error))
        return Loaded(None, "missing", reason=str(error))


def _from_cache(name: str, level: str, shared: bool) -> Loaded:
    """From the cache, where it may have to be compiled to. All sources are, at once: a user waits once."""
    command = compiler.command()
    if command is None:
        _tell(logging.WARNING, "the C loops are not built, routing and convolutions are slower", "no C compiler")
        raise CompileError("no C compiler")
    try:
        folder = cache.private_folder(cache_folder() / "native")
    except OSError as error:
        raise OSError(f"they are not built and cannot be kept: {error}") from None
    openmp = shared and compiler.shares_openmp(command)
    stems = {source: compiler.stem(source, level, openmp, tuple(command)) for source in compiler.sources()}
    found = cache.find_library(folder, stems[name])
    origin = "cache"
    if found is None:
        reason = cache.known_failure(folder, stems[name])
        if reason is not None:
            _tell(logging.INFO, "the C loops could not be compiled lately", reason)
            raise CompileError(f"{reason} (remembered; remove {folder} to try again)")
        origin = "compiled"
        wanted = [n for n, stem in stems.items() if cache.find_library(folder, stem) is None]
        _compile(command, folder, {n: stems[n] for n in wanted}, level, openmp)
        found = cache.find_library(folder, stems[name])
        if found is None:
            raise CompileError(cache.known_failure(folder, stems[name]) or "it was removed at once")
    try:
        return Loaded(ctypes.CDLL(str(found)), origin, level, openmp, str(found))
    except OSError as error:
        found.unlink(missing_ok=True)
        cache.remember_failure(folder, stems[name], f"{found.name} cannot be loaded: {error}")
        raise


def _compile(command: list[str], folder: Path, stems: dict[str, str], level: str, openmp: bool) -> None:
    files = ", ".join(f"{name}.c" for name in stems)
    print(f"torchcaps: compiling {files} for this machine, once; a few seconds", file=sys.stderr, flush=True)

    def one(name: str) -> str | None:
        try:
            with tempfile.TemporaryDirectory(dir=folder) as room:
                built = Path(room) / "built.so"
                compiler.build(command, name, level, openmp, built)
                cache.store_library(folder, stems[name], built)
                return None
        except CompileError as error:
            cache.remember_failure(folder, stems[name], str(error))
            return str(error)

    with ThreadPoolExecutor() as pool:
        reasons = [reason for reason in pool.map(one, stems) if reason]
    if reasons:
        count = f"{len(reasons)} of {len(stems)} files with C loops"
        _tell(logging.WARNING, f"{count} could not be compiled, PyTorch does their work, slower", reasons[0])


def _tell(level: int, what: str, why: str) -> None:
    """Once in a process, with the first reason: what is wrong with one file mostly is with all."""
    with _lock:
        if what not in _told:
            _told.add(what)
            log.log(level, "torchcaps: %s: %s", what, why)


def _usable_levels() -> list[str]:
    """Those that this processor can run, best first; PyTorch has looked, `ATEN_CPU_CAPABILITY` may lower it."""
    able = {"AVX512": ("avx512", "avx2", "base"), "AVX2": ("avx2", "base")}.get(
        torch.backends.cpu.get_cpu_capability(), ("base",)
    )
    return [level for level in compiler.levels() if level in able]


@lru_cache(maxsize=1)
def _share_openmp() -> bool:
    """Make the OpenMP library that PyTorch has loaded visible to ours; False where there is none of GNU's functions."""
    try:
        loaded = re.findall(r"/\S*lib(?:gomp|iomp5)\S*", Path("/proc/self/maps").read_text())
        return any(hasattr(ctypes.CDLL(path, ctypes.RTLD_GLOBAL), "GOMP_parallel") for path in dict.fromkeys(loaded))
    except OSError:
        return False


def constant(function: Callable[[], Result]) -> Callable[[], Result]:
    """For `torch.compile`: the answer does not change, so that the function need not be traced.

    What `torch.compiler.assume_constant_result` does, without the two seconds that importing the compiler takes.
    """
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function
