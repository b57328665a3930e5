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
    torch.ones(1 << 26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start

faults()
print(faults())
"""


def _faults(before: str) -> int:
    program = FAULTS.format(before=before)
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
def test_freed_memory_is_not_asked_for_again() -> None:
    usual, kept = _faults(""), _faults("keep_freed_memory()")
    assert usual > 50, "the memory came without page faults: this test would show nothing"
    assert kept < usual / 10
