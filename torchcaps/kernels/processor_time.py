"""Time that this program's own work takes, whatever else runs on the machine."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def spent(call: Callable[[], object]) -> float:
    """Seconds of processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other look busy, and wait longer while other programs run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
