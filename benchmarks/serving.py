"""A playground server in a process of its own, for the benchmarks beside this file."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

RESULTS = Path(__file__).parents[1] / "results" / "serve"


class Process(NamedTuple):
    port: int
    pid: int
    token: str
    log: TextIO

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def log_bytes(self) -> int:
        return os.fstat(self.log.fileno()).st_size


@contextmanager
def serving(run: str) -> Iterator[Process]:
    """What the server says goes to a file: a pipe that nobody reads would fill up and stop it."""
    command = [sys.executable, "-m", "torchcaps", "serve", run, "--port", "0", "--no-open", "--json"]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                raise SystemExit("the server did not start")
            place = json.loads(said)
            yield Process(place["port"], process.pid, place["token"], log)
        finally:
            process.terminate()
            process.wait()
            log.seek(0)
            for line in log.readlines():
                print(line.rstrip(), file=sys.stderr)
