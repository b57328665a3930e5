"""Run twice by test_processes.py, as two processes of one training: what they tell each other, as JSON."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import torchcaps
from torchcaps.core.errors import UserError
from torchcaps.training import processes
from torchcaps.training.runs import Checkpoint

rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
own = folder / f"machine-{rank}"


def refused(work: Any) -> str:
    try:
        work()
    except UserError as error:
        return str(error)
    return ""


def state(step: int) -> dict[str, Any]:
    return {"step": step, "seconds": 1.0, "rows": [], "kernels": {}}


def told() -> dict[str, Any]:
    def no() -> None:
        raise UserError("the first says no")

    known = Checkpoint(own / "run")
    if rank == 0:
        known.save({"x": torch.arange(3.0)}, state(5))
    with processes.together():
        found: dict[str, Any] = {"value": processes.from_first(lambda: {"rank": rank})}
        found["refused"] = refused(lambda: processes.from_first(no))
        loaded = processes.state_of_first(known.load, known.step)
        assert loaded is not None
        found["state"] = [loaded[0]["x"].tolist(), loaded[1]["step"]]
        if rank == 1:
            known.save({"x": torch.zeros(3)}, state(9))
        processes.meet()
        found["newer"] = refused(lambda: processes.state_of_first(known.load, known.step))
    return found


def loss(scores: torch.Tensor, batch: Any) -> torch.Tensor:
    """In its fifth step the second process is asked to stop: both do, and the first one has saved."""
    global steps
    steps += 1
    if rank == 1 and steps == 5:
        os.kill(os.getpid(), signal.SIGTERM)
    return cross_entropy(scores, batch.labels[:, 0])


print(json.dumps(told()), flush=True)
torch.manual_seed(0)
steps, data = 0, (torch.rand(64, 1, 4, 4), torch.arange(64) % 4)
options: dict[str, Any] = {"batch": 8, "checkpoint_seconds": 900.0, "quiet": True, "loss": loss}
torchcaps.fit(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), data, out=own / "trained", steps=10**7, **options)
