"""A playground server in a process of its own, for the benchmarks beside this file."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

RESULTS = Path(__file__).parents[1] / "results" / "serve"
START_SECONDS = 60


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
    """What the server says goes to a file: a pipe that nobody reads would fill up and stop it."""
    command = [sys.executable, "-m", "torchcaps", "serve", run, "--port", "0", "--no-open"]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield Process(_port(process, log), process.pid)
        finally:
            process.terminate()
            process.wait()
            log.seek(0)
            for line in log.readlines()[1:]:
                print(line.rstrip(), file=sys.stderr)


def _port(process: subprocess.Popen[bytes], log: TextIO) -> int:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        log.seek(0)
        if found := re.search(r":(\d+)/", log.read()):
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit("the server did not start")
