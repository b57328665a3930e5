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

print(*(faults() for _ in range(8)))
"""


def _faults(before: str) -> list[int]:
    program = FAULTS.format(before=before)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [int(count) for count in answer.stdout.split()]


@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other C libraries")
def test_freed_memory_is_not_asked_for_again() -> None:
    usual = min(_faults(""))
    assert usual > 50, "the memory came without page faults: this test would show nothing"
    # In a few processes it has no effect. In the others, what is made beside the memory at first may take its
    # place, so that it moves once or twice.
    assert any(sorted(_faults("keep_freed_memory()"))[3] < usual / 10 for _ in range(6))
