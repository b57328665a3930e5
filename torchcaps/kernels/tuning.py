"""Which kernel runs where: measured at first use, remembered in this process and in the user's cache folder."""

import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from torchcaps.errors import UserError

Mode = Literal["plain", "fast", "auto"]
VARIABLE = "TORCHCAPS_KERNELS"
ROUNDS = 6
CLEAR = 1.3
"""No more rounds are needed once one twin takes this many times as long as the other."""
LONG = 0.1
"""Seconds from which a first call counts: shorter ones are mostly what a library prepares for a new shape."""

_choices: dict[str, str] = {}
_lock = threading.Lock()


def mode() -> Mode:
    """`TORCHCAPS_KERNELS`: the plain twins, the kernels wherever they can, or whichever measures best."""
    value = os.environ.get(VARIABLE) or "auto"
    if value not in get_args(Mode):
        raise UserError(f"{VARIABLE} must be plain, fast or auto, not '{value}'")
    return value  # pyright: ignore[reportReturnType]


def traced(operator: bool = False) -> bool:
    """Whether somebody is looking at operators instead of numbers: export, compilation, `torch.func`.

    A kernel that is an `operator` of `torch.library` can be compiled, so compilation does not count.
    """
    return (
        (torch.compiler.is_compiling() and not operator)
        or torch.compiler.is_exporting()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or torch._C._are_functorch_transforms_active()
    )


def eligible(*tensors: Tensor, operator: bool = False) -> bool:
    """Whether a kernel may compute with these: numbers, of one precision that it knows, that nobody is tracing."""
    first = tensors[0]
    return (
        mode() != "plain"
        and not traced(operator)
        and first.dtype in (torch.float32, torch.float64)
        and all(tensor.dtype == first.dtype for tensor in tensors)
        and first.numel() > 0
        and first.device.type != "meta"
        and not torch.is_autocast_enabled(first.device.type)
    )


def choices() -> dict[str, str]:
    """What was chosen so far in this process, by name. A run that stores this can be continued bit for bit."""
    return dict(_choices)


def use(choices: Mapping[str, str]) -> None:
    """Choose these without measuring."""
    _choices.update(choices)


def wins(name: str, plain: Callable[[], object], fast: Callable[[], object]) -> bool:
    """Whether the kernel is the faster twin for `name`, which says everything that matters but the machine."""
    if mode() != "auto":
        return mode() == "fast"
    name = f"{name}, {torch.get_num_threads()} threads"
    with _lock:
        if name not in _choices:
            stored = _read().get(_machine(), {})
            _choices[name] = stored.get(name) or _measure(plain, fast)
            if name not in stored:
                _store(name, _choices[name])
    return _choices[name] == "fast"


def _measure(plain: Callable[[], object], fast: Callable[[], object]) -> str:
    fast()
    best = {"plain": float("inf"), "fast": float("inf")}
    for round in range(ROUNDS):
        for twin, call in (("plain", plain), ("fast", fast)):
            start = time.perf_counter()
            call()
            best[twin] = min(best[twin], time.perf_counter() - start)
        settled = round > 0 or min(best.values()) > LONG
        if settled and max(best.values()) > CLEAR * min(best.values()):
            break
    return min(best, key=lambda twin: best[twin])


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, torch {torch.__version__}"


def cache_folder() -> Path:
    import pooch

    return Path(pooch.os_cache("torchcaps"))


def _path() -> Path:
    return cache_folder() / "kernels.json"


def _read() -> dict[str, dict[str, str]]:
    try:
        return json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}


def _store(name: str, choice: str) -> None:
    """Beside, then renamed. A folder that cannot be written to only means measuring again."""
    stored = _read()
    stored.setdefault(_machine(), {})[name] = choice
    try:
        _path().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_path().parent, suffix=".json", delete=False) as file:
            json.dump(stored, file, indent=1, sort_keys=True)
        os.replace(file.name, _path())
    except OSError:
        pass
