"""Several processes that train one network: they meet, agree on where they stand, and stop together.

Only the first process reads and writes the run folder, and tells the others what is in it. So they never go on from
different states, also where each machine has a disk of its own. Alone, a process does everything here by itself.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, rendezvous  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.core.errors import UserError
from torchcaps.core.files import packed

TIMEOUT = "TORCHCAPS_TIMEOUT"
SECONDS = 600.0
"""How long a process waits for the others, where that variable is not set."""
MEETING = "torchcaps/meeting"
FINISH = timedelta(days=1)
"""How long the others wait for the first to score the test set. If it is killed meanwhile they notice at once."""
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
"""How often torchrun has started its workers again, or Slurm a job."""


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def rank() -> int:
    return int(os.environ.get("RANK", 0))


def timeout() -> timedelta:
    text = os.environ.get(TIMEOUT) or str(SECONDS)
    try:
        return timedelta(seconds=_positive(float(text)))
    except (ValueError, OverflowError):
        raise UserError(f"{TIMEOUT} must be a number of seconds, more than 0, not '{text}'") from None


def _positive(value: float) -> float:
    if not value > 0:
        raise ValueError
    return value


@contextmanager
def together() -> Iterator[None]:
    """Inside, the processes of this training can talk. Whoever is lost ends the others with one line."""
    if world() == 1 or dist.is_initialized():
        yield
        return
    wait = timeout()
    try:
        store = _shared_by_those_alive(wait.total_seconds())
        # What they tell each other is in main memory, also where gradients are not.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank(), world_size=world(), timeout=wait)
        yield
    except (dist.DistError, RuntimeError) as error:
        if not _is_loss(error):
            raise
        lost = f"process {rank()} of {world()} waited up to {wait.total_seconds():g} s ({TIMEOUT}) for the others"
        why = re.sub(r"\[/[^]]*\] ?", "", str(error).splitlines()[0]).partition(". This is")[0]
        raise UserError(f"{lost}, and one has ended or does not answer: {why[:200]}") from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _shared_by_those_alive(seconds: float) -> Store:
    """Where the processes leave notes for each other, without those of processes that have ended.

    torchrun keeps the notes of all its starts in one place: who reads an older one waits for somebody who is gone. So
    the first process names a new place, each of the others leaves its name there, and only who is answered has met the
    others of this start.
    """
    try:
        store, _, _ = next(rendezvous("env://", rank(), world(), timeout=timedelta(seconds=seconds)))
    except ValueError as error:
        raise UserError(f"{world()} processes cannot meet: {error}; torchrun sets what they need") from None
    name, deadline = uuid4().hex, time.monotonic() + seconds
    missing = {f"{name}/{other}" for other in range(1, world())}
    if rank() == 0:
        store.set(MEETING, name)
    while time.monotonic() < deadline:
        if rank() == 0:
            for note in [note for note in missing if store.check([note])]:
                store.set(f"{note}/{store.get(note).decode()}", "seen")
                missing.remove(note)
            if not missing:
                return PrefixStore(name, store)
        elif store.check([MEETING]):
            place = store.get(MEETING).decode()
            store.set(f"{place}/{rank()}", name)
            if store.check([f"{place}/{rank()}/{name}"]):
                return PrefixStore(place, store)
        time.sleep(0.05)
    waited = f"process {rank()} of {world()} waited {seconds:g} s ({TIMEOUT})"
    raise UserError(f"{waited}, and {'not all others came' if rank() == 0 else 'the first did not answer'}")


def _is_loss(error: Exception) -> bool:
    """Gloo raises plain RuntimeErrors, which name its source files."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("gloo/", "Gloo", "NCCL"))


def from_first(work: Callable[[], Any]) -> Any:
    """What the first process computes, told to all as JSON. If it is refused there, all are told why."""
    if world() == 1:
        return work()
    told: dict[str, Any] = {}
    if rank() == 0:
        try:
            told = {"value": work()}
        except UserError as error:
            told = {"refused": str(error)}
    told = json.loads(_spread(json.dumps(told).encode()))
    if "refused" in told:
        raise UserError(told["refused"])
    return told["value"]


Tensors = dict[str, Tensor]
Loaded = tuple[Tensors, dict[str, Any]]


def tensors_of_first(load: Callable[[], Tensors]) -> Tensors:
    """What the first process reads."""
    return cast(Loaded, state_of_first(lambda: (load(), {"step": 0})))[0]


def state_of_first(load: Callable[[], Loaded | None], step: Callable[[], int | None] = lambda: 0) -> Loaded | None:
    """The checkpoint that the first process has. Another process with a newer one means that ranks were exchanged."""
    if world() == 1:
        return load()
    from safetensors.torch import load as unpacked

    mine: list[Tensors] = []

    def position() -> dict[str, Any] | None:
        loaded = load()
        if loaded is None:
            return None
        mine.append(loaded[0])
        return loaded[1]

    state = from_first(position)
    at, newest = 0 if state is None else state["step"], int(largest(step() or 0))
    if newest > at:
        where = "start its machine as the first one (--node-rank 0), or use a folder that all share"
        raise UserError(f"another process has a checkpoint of step {newest}, the first has step {at}: {where}")
    return None if state is None else (unpacked(_spread(packed(mine[0])[0] if mine else b"")), state)


def started_again() -> bool:
    """Whether this is not the first start of the same command, for any of the processes."""
    count = max(int(os.environ.get(name) or 0) for name in RESTARTS)
    return bool(largest(float(count)))


def largest(value: float) -> float:
    """Of all processes."""
    if world() == 1:
        return value
    shared = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return shared.item()


def mean(values: Tensor) -> Tensor:
    """Over all processes, whose shares of a batch are equal."""
    if world() > 1:
        dist.all_reduce(values)
    return values / world()


def meet() -> None:
    """Wait until all are here."""
    if world() > 1:
        dist.barrier()


def wait_for_first(work: Callable[[], Any]) -> Any:
    """The first does the work, however long it takes; the others return None after it."""
    if world() == 1:
        return work()
    group = dist.new_group(backend="gloo", timeout=FINISH)
    done = work() if rank() == 0 else None
    dist.barrier(group)  # pyright: ignore[reportArgumentType]
    return done


def _spread(content: bytes) -> bytes:
    size = torch.tensor([len(content)])
    dist.broadcast(size, 0)
    room = torch.frombuffer(bytearray(content), dtype=torch.uint8) if rank() == 0 else torch.empty(int(size)).byte()
    dist.broadcast(room, 0)
    return room.numpy().tobytes()
