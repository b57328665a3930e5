"""Memory that is used again: fewer pages to ask the system for."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from torchcaps.kernels.workspace import keep_freed_memory

{before}
def faults():
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    filled = torch.ones(1 << 26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start, filled.data_ptr()

def in_heap(address):
    ranges = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)

faults()
count, address = faults()
print(count, int(in_heap(address)))
"""


def _faults(before: str) -> tuple[int, bool]:
    program = FAULTS.format(before=before)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    count, in_heap = map(int, answer.split())
    return count, bool(in_heap)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
def test_freed_memory_is_not_asked_for_again() -> None:
    usual, _ = _faults("")
    kept, in_heap = _faults("keep_freed_memory()")
    if usual < 50:
        pytest.skip("memory comes without page faults here: there is nothing to save")
    if not in_heap:
        pytest.skip("the heap cannot grow on this system, whatever the C library is asked")
    assert kept < usual / 10
