"""A playground server in a process of its own, for the benchmarks beside this file."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parents[1] / "results" / "serve"


class Process(NamedTuple):
    port: int
    pid: int

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def serving(run: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "torchcaps", "serve", run, "--port", "0", "--no-open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r":(\d+)/", line)
            if found is None:
                raise SystemExit(f"the server did not start: {line.strip()}")
            yield Process(int(found[1]), process.pid)
        finally:
            process.terminate()
