"""Plain twin against ours, interleaved in one run.

Each twin lives in a process of its own, so that its peak memory, its first step and its environment are its own; the
two take turns, and the next repeat begins with the other one.
"""

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torchcaps.core.errors import UserError

WARM_UP = 6
"""Steps until memory has settled."""
TWINS = ("plain", "ours")


def run(
    names: Sequence[str] = (), repeats: int = 10, batch: int | None = None, threads: int | None = None
) -> list[dict[str, Any]]:
    """A row for each benchmark: median milliseconds of both twins, their spread, ratio and memory.

    `ratio` is plain over ours: how many times faster. `first` is the first call, with everything that is only done
    once; `mb` is the peak of resident memory above what the process had before the first call.
    """
    from torchcaps.app.twins import CASES

    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise UserError(f"no benchmark '{unknown[0]}'; there are {', '.join(map(repr, CASES))}")
    if repeats < 1:
        raise UserError(f"--repeats must be at least 1, not {repeats}")
    return [_compare(name, repeats, batch or CASES[name][1], threads) for name in names or CASES]


def _compare(name: str, repeats: int, batch: int, threads: int | None) -> dict[str, Any]:
    with _worker("plain", name, batch, threads) as plain, _worker("ours", name, batch, threads) as ours:
        workers = {"plain": plain, "ours": ours}
        first = {twin: _ask(workers[twin]) for twin in TWINS}
        for _ in range(WARM_UP):
            for twin in TWINS:
                _ask(workers[twin])
        times: dict[str, list[float]] = {twin: [] for twin in TWINS}
        for repeat in range(repeats):
            for twin in TWINS if repeat % 2 == 0 else TWINS[::-1]:
                times[twin].append(_ask(workers[twin]))
        memory = {twin: _ask(workers[twin], "memory") for twin in TWINS}
    middle = {twin: statistics.median(times[twin]) for twin in TWINS}
    return {
        "name": name,
        "batch": batch,
        "repeats": repeats,
        **{f"{twin}_ms": round(middle[twin], 3) for twin in TWINS},
        "ratio": round(middle["plain"] / middle["ours"], 3),
        **{f"{twin}_spread_ms": [round(min(times[twin]), 3), round(max(times[twin]), 3)] for twin in TWINS},
        **{f"{twin}_first_ms": round(first[twin], 1) for twin in TWINS},
        **{f"{twin}_mb": round(memory[twin], 1) for twin in TWINS},
    }


@contextmanager
def _worker(twin: str, name: str, batch: int, threads: int | None) -> Iterator[Connection]:
    with tempfile.TemporaryDirectory() as cache:
        # Nothing remembered from before: the first step includes the choice of kernels.
        environment = {"TORCHCAPS_KERNELS": "plain" if twin == "plain" else "auto", "XDG_CACHE_HOME": cache}
        # Ours sets this on import, and keeps freed memory; the twin is PyTorch as it comes.
        environment |= {"THP_MEM_ALLOC_ENABLE": "0"} if twin == "plain" else {}
        context = get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, twin, name, batch, threads), daemon=True)
        with _environment(environment):
            process.start()
        there.close()
        try:
            yield here
        finally:
            here.close()
            process.join()


@contextmanager
def _environment(changed: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _ask(worker: Connection, what: str = "time") -> float:
    try:
        worker.send(what)
        return worker.recv()
    except (EOFError, BrokenPipeError):
        raise UserError("a benchmark's process ended early: is there enough memory? Try a smaller batch") from None


def _serve(parent: Connection, twin: str, name: str, batch: int, threads: int | None) -> None:
    import torch

    from torchcaps.app.twins import CASES
    from torchcaps.kernels.workspace import keep_freed_memory

    if twin == "ours":
        keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    work = CASES[name][0](batch, twin)  # pyright: ignore[reportArgumentType]
    _peak_mb()
    before = _peak_mb()
    while True:
        try:
            question = parent.recv()
        except EOFError:
            return
        if question == "memory":
            parent.send(_peak_mb() - before)
            continue
        start = time.perf_counter()
        work()
        parent.send((time.perf_counter() - start) * 1e3)


def _peak_mb() -> float:
    """Peak of resident memory since the process began; where the system allows it, since the last call."""
    try:
        status = Path("/proc/self/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        Path("/proc/self/clear_refs").write_text("5")
        return peak / 2**10
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
