"""What was chosen, and why: kept in the user's cache folder, one file for all machines that share it.

The file is read for every new choice and written whole. What it says is taken only if it was found by these versions of
torchcaps and PyTorch on a processor of this name with these vectors: in virtual machines the name does not say which.
A damaged file, or one of another format, is ignored and rewritten.
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torchcaps.core.files import cache_folder, take_lock
from torchcaps.core.machine import processor
from torchcaps.kernels.cache import write_whole

FORMAT = 3
log = logging.getLogger("torchcaps")


@lru_cache(maxsize=1)
def machine() -> str:
    """Everything outside of a program that a choice depends on."""
    try:
        ours = version("torchcaps")
    except PackageNotFoundError:
        ours = "not installed"
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{processor()}, {vectors}, {os.cpu_count()} cores, torch {torch.__version__}, torchcaps {ours}"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def path() -> Path:
    return cache_folder() / "kernels.json"


def read() -> dict[str, Any]:
    """Of this machine: `rates` (see `cost.py`) and `choices` by name; empty where nothing is known."""
    return _read_all().get(machine(), {})


def store(section: str, entries: dict[str, Any]) -> None:
    """Adds to what is stored by now. A folder that cannot be written to only means finding it out again."""
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        with _alone():
            machines = _read_all()
            machines.setdefault(machine(), {}).setdefault(section, {}).update(entries)
            content = {"format": FORMAT, "machines": machines}
            write_whole(path(), json.dumps(content, indent=1, sort_keys=True).encode(), sync=False)
    except OSError as error:
        _tell(f"choices of kernels are made again by every process: {path()} cannot be written: {error.strerror}")


@lru_cache(maxsize=8)
def _tell(message: str) -> None:
    """Once in a process."""
    log.warning("torchcaps: %s", message)


def _read_all() -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(path().read_bytes())
        if content["format"] != FORMAT:
            return {}
        machines = content["machines"].items()
        return {name: found for name, found in machines if all(isinstance(part, dict) for part in found.values())}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Between reading and writing no other process writes, where the system has locks."""
    with open(path().with_suffix(".lock"), "w") as file:
        take_lock(file, wait=True)
        yield
