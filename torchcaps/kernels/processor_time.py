"""Time that this program's own work takes, whatever else runs on the machine."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def spent(call: Callable[[], object]) -> float:
    """Seconds of processor time of one call.

    By the wall clock where that stands still: while a profiler has set a timer (`ITIMER_PROF`), Linux moves the clock
    of processor time at its ticks only.
    """
    start, wall = time.process_time(), time.perf_counter()
    call()
    used = time.process_time() - start
    return used if used > 0 else time.perf_counter() - wall


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other look busy, and wait longer while other programs run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
