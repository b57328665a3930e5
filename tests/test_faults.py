"""A small sample of what `benchmarks/faults.py` does: faults while saving, loading and resuming lose nothing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

from faulty import asked, mutants, power, readers  # noqa: E402


def forget(text: str) -> None:
    """What was found is in the counts."""


def test_mutated_runs_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    asked.register()
    found = mutants.campaign(tmp_path, 120, seed=7, slow=0, say=forget)
    assert found["wrong"] == 0, found["found"]
    assert found["refused in one line"] > 10, "most of them are noticed"


@pytest.mark.parametrize("synced", [True, False])
def test_power_loss_loses_no_finished_checkpoint(tmp_path: Path, synced: bool) -> None:
    """And on a disk that ignores syncs it would."""
    found: dict[str, Any] = power.losses(tmp_path, saves=3, syncs=synced)
    assert (found["wrong"] == 0) == synced, found["found"]
    assert found["injected"] > 20


def test_mutated_files_of_every_reader_are_read_or_refused(tmp_path: Path) -> None:
    found = readers.fuzz(tmp_path, 0.05, seed=1)
    assert found["faults"] == 0, found["found"]
    assert all(part["files"] for part in found["formats"].values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")
def test_failing_system_calls_lose_nothing(tmp_path: Path) -> None:
    shim = tmp_path / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, BENCHMARKS / "faulty" / "shim.c", "-ldl"], check=True)
    paths = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "faulty.syscalls", str(tmp_path), "5", "0", "1"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert answer.returncode == 0, answer.stderr[-2000:]
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["wrong"] == 0, found["found"]
    assert found["injected"] > 5
