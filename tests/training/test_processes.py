"""Two processes of one training, without a shared folder: they agree on where they stand, and stop together."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from torchcaps.core.errors import UserError
from torchcaps.training import processes
from torchcaps.training.runs import Checkpoint

WORKER = Path(__file__).with_name("processes_worker.py")


def start(folder: Path, rank: int, port: int, **more: str) -> subprocess.Popen[str]:
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHCAPS_TIMEOUT": "300", **place, **more}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, WORKER, folder], env=environment, **pipes)  # pyright: ignore


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_two_processes_agree_and_stop_together(tmp_path: Path) -> None:
    port = free_port()
    both = [start(tmp_path, rank, port) for rank in range(2)]
    answers = [process.communicate(timeout=600) for process in both]
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


def test_every_wait_has_an_end_and_who_is_lost_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(processes.TIMEOUT, "7")
    monkeypatch.setattr(processes, "_shared_by_those_alive", lambda seconds: HashStore())
    monkeypatch.setattr(processes.dist, "init_process_group", lambda *_, **options: given.update(options))
    with pytest.raises(UserError, match=r"up to 7 s .*: Connection closed$"), processes.together():
        raise RuntimeError("[/torch/gloo/transport/tcp/pair.cc:534] Connection closed. This is a long story")
    assert given["timeout"] == timedelta(seconds=7)
    with pytest.raises(RuntimeError, match="a bug"), processes.together():
        raise RuntimeError("a bug")


def test_notes_of_those_who_have_ended_mislead_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart by torchrun: the second process comes first, and finds the meeting of the start before."""
    store = HashStore()
    store.set(processes.MEETING, "before")
    store.set("left", "by the dead")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(processes, "rank", lambda: int(threading.current_thread().name))
    monkeypatch.setattr(processes, "rendezvous", lambda *_, **__: iter([(store, 0, 2)]))
    places: dict[str, Any] = {}

    def meet() -> None:
        places[threading.current_thread().name] = processes._shared_by_those_alive(60)

    both = [threading.Thread(target=meet, name=name) for name in ("1", "0")]
    for thread in both:
        thread.start()
        while thread.name == "1" and not store.check(["before/1"]):
            time.sleep(0.01)
    for thread in both:
        thread.join()
    places["0"].set("word", "new")
    assert places["1"].check(["word"])
    assert not any(place.check(["left"]) for place in places.values())


def test_processes_that_nobody_introduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes cannot meet"), processes.together():
        pass
