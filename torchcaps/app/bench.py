"""Plain and compiled twin against ours, interleaved in one run.

Each twin lives in a process of its own, so that its peak memory, its first step and its environment are its own; they
take turns, and the next repeat begins with the other end.
"""

import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torchcaps.core.errors import UserError, argument

WARM_UP = 6
"""Steps until memory has settled."""
PAUSE = 0.05
"""Seconds between two turns: a thread that has finished looks for more work for some milliseconds before it sleeps."""
TURN = 0.05
"""Seconds of a turn, or one call if that takes longer; the median of its calls counts. Threads that have slept may
share a processor at first: PyTorch's own convolution of one image then takes 10 ms more, in one twin or the other."""


def run(
    names: Sequence[str] = (),
    repeats: int = 10,
    batch: int | None = None,
    threads: int | None = None,
    compiled: bool = True,
) -> list[dict[str, Any]]:
    """A row for each benchmark: median milliseconds of each twin, their spread, ratio and memory.

    `ratio` is plain over ours: how many times faster; `best_ratio` the same of the better of plain and compiled, where
    there is a compiled twin, `torch.compile` works on this machine and `compiled` asks for it. `first` is the first
    call, with everything that is only done once; `mb` is the peak of resident memory above what the process had before
    the first call.
    """
    from torchcaps.app.twins import CASES, COMPILED

    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise UserError(f"no benchmark '{unknown[0]}'; there are {', '.join(map(repr, CASES))}")
    if repeats < 1:
        raise UserError(f"{argument('repeats')} must be at least 1, not {repeats}")
    return [
        _compare(name, repeats, batch or CASES[name][1], threads, compiled and name in COMPILED)
        for name in names or CASES
    ]


def _compare(name: str, repeats: int, batch: int, threads: int | None, compiled: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        wanted = ("plain", "compiled", "ours") if compiled else ("plain", "ours")
        workers = {twin: stack.enter_context(_worker(twin, name, batch, threads)) for twin in wanted}
        first = {twin: _first(worker, twin, name) for twin, worker in workers.items()}
        if math.isnan(first.get("compiled", 0.0)):
            del workers["compiled"], first["compiled"]
        twins = list(workers)
        for _ in range(WARM_UP):
            for twin in twins:
                _ask(workers[twin])
        times: dict[str, list[float]] = {twin: [] for twin in twins}
        for repeat in range(repeats):
            for twin in twins if repeat % 2 == 0 else twins[::-1]:
                times[twin].append(_ask(workers[twin]))
        memory = {twin: _ask(workers[twin], "memory") for twin in twins}
    middle = {twin: statistics.median(times[twin]) for twin in twins}
    best = min(value for twin, value in middle.items() if twin != "ours")
    return {
        "name": name,
        "batch": batch,
        "repeats": repeats,
        **{f"{twin}_ms": round(middle[twin], 3) for twin in twins},
        "ratio": round(middle["plain"] / middle["ours"], 3),
        "best_ratio": round(best / middle["ours"], 3),
        **{f"{twin}_spread_ms": [round(min(times[twin]), 3), round(max(times[twin]), 3)] for twin in twins},
        **{f"{twin}_first_ms": round(first[twin], 1) for twin in twins},
        **{f"{twin}_mb": round(memory[twin], 1) for twin in twins},
    }


@contextmanager
def _worker(twin: str, name: str, batch: int, threads: int | None) -> Iterator[Connection]:
    with tempfile.TemporaryDirectory() as cache:
        # Nothing remembered from before: the first step includes the choice of kernels.
        environment = {"TORCHCAPS_KERNELS": "auto" if twin == "ours" else "plain", "XDG_CACHE_HOME": cache}
        # Ours sets this on import, and keeps freed memory; the twin is PyTorch as it comes.
        environment |= {} if twin == "ours" else {"THP_MEM_ALLOC_ENABLE": "0"}
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


def _first(worker: Connection, twin: str, name: str) -> float:
    """Not a number if the code that `torch.compile` made ends its process, as that of `matrix-smallnorb` does here."""
    try:
        return _ask(worker, "first")
    except UserError:
        if twin != "compiled":
            raise
        print(f"no compiled twin of '{name}': its process ended", file=sys.stderr)
        return math.nan


def _ask(worker: Connection, what: str = "time") -> float:
    time.sleep(PAUSE)
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
        try:
            parent.send(_milliseconds(work, 0.0 if question == "first" else TURN))
        except Exception as error:
            # torch.compile needs a C++ compiler: without one there is no such twin.
            if twin != "compiled":
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            print(f"no compiled twin of '{name}': {reason[:200]}", file=sys.stderr)
            parent.send(math.nan)


def _milliseconds(work: Callable[[], object], turn: float) -> float:
    times: list[float] = []
    while sum(times) <= turn:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


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
