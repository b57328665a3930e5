"""The processor and the free memory of this machine."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path


def processor() -> str:
    """The name of the processor, such as "AMD EPYC"."""
    with suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(), re.M):
            return found[1].strip()
    return platform.processor() or platform.machine()


def memory_available() -> int:
    """Bytes of memory that a new process can use, within the limit of the container if there is one."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 2**10
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{part}").read_text()) for part in ("max", "current"))
        parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Cached file contents count as used, but the system frees them on demand.
        return min(free, limit - used + int(parts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return free
