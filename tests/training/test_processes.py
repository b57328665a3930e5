"""Two processes of one training, without a shared folder: they agree on where they stand, and stop together."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from torchcaps.core.errors import UserError
from torchcaps.training import processes
from torchcaps.training.runs import Checkpoint

WORKER = Path(__file__).with_name("processes_worker.py")


def start(folder: Path, rank: int, port: int, **more: str) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHCAPS_TIMEOUT": "60", **place, **more}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, WORKER, folder], env=environment, **pipes)  # pyright: ignore


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_two_processes_agree_and_stop_together(tmp_path: Path) -> None:
    port = free_port()
    both = [start(tmp_path, rank, port) for rank in range(2)]
    answers = [process.communicate(timeout=300) for process in both]
    for process, (said, errors) in zip(both, answers, strict=True):
        assert process.returncode == -signal.SIGTERM, errors
        found = json.loads(said.splitlines()[0])
        assert found["value"] == {"rank": 0}
        assert found["refused"] == "the first says no"
        assert found["state"] == [[0.0, 1.0, 2.0], 5], "what the first one read, also where there is no file"
        assert "another process has a checkpoint of step 9, the first has step 5" in found["newer"]
    loaded = Checkpoint(tmp_path / "machine-0" / "trained").load()
    assert loaded is not None
    assert loaded[1]["step"] == 5, "saved because the other one was asked to stop"
    assert not (tmp_path / "machine-1" / "trained" / "config.json").exists(), "only the first one writes"


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_a_timeout_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(processes.TIMEOUT, value)
    with pytest.raises(UserError, match="TORCHCAPS_TIMEOUT must be a number of seconds"):
        processes.timeout()


def test_one_that_comes_alone_waits_no_longer_than_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in {**settings, processes.TIMEOUT: 0.3}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match=r"0 of 2 waited .*0.3 s \(TORCHCAPS_TIMEOUT\)"), processes.together():
        pass


def test_processes_that_nobody_introduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes cannot meet"), processes.together():
        pass
