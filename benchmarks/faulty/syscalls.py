"""Every system call of saving, loading and resuming fails in turn; `shim.c` does it to a process that is forked for it.

    LD_PRELOAD=shim.so python -m faulty.syscalls FOLDER SECONDS JOB JOBS        # what faults.py starts

After each fault the answer is one line or success, the newest checkpoint that was finished can be read, and the same
command without a fault ends in the same weights as if there had been none.
"""

import ctypes
import errno
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from faulty import asked
from torchcaps.core.errors import UserError
from torchcaps.core.progress import quietly
from torchcaps.training.runs import Checkpoint, load_run

FAIL, HALF, KILL = range(3)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
SHIM = ctypes.CDLL(None)


def in_child(work: Callable[[], Any]) -> Any | None:
    """What it returns, from a process of its own; None if that was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def under_fault(run: Path, command: Callable[[], asked.Answer], nth: int, mode: int, error: int) -> Any:
    def work() -> dict[str, Any]:
        SHIM.fault_arm(str(run).encode(), ctypes.c_long(nth), mode, error)
        answer = command()
        names = [SHIM.fault_name(number).decode() for number in range(SHIM.fault_seen())]
        SHIM.fault_arm(b"", ctypes.c_long(-2), 0, 0)
        return {"calls": names, "answer": answer}

    return in_child(work)


class Place:
    """A command, the run folder that it is given, and what must hold after a fault."""

    def __init__(self, name: str, room: Path, original: Path | None, arguments: list[str]) -> None:
        self.name, self.run, self.original = name, room / "run", original
        self.expected: str | None = None
        self.arguments = [str(self.run) if part == "RUN" else part for part in arguments]

    def fresh(self) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        if self.original:
            shutil.copytree(self.original, self.run)

    def command(self) -> asked.Answer:
        if self.arguments == ["save"]:
            return _answer(lambda: Checkpoint(self.run).save({"x": torch.ones(9)}, _state(9)))
        return asked.call(*self.arguments)

    def lost(self, whole: bool) -> str | None:
        """What is lost after a fault, if anything. `whole` also goes on to the end."""
        with quietly():
            try:
                if self.original:
                    loaded = Checkpoint(self.run).load()
                    if loaded is None or loaded[1]["step"] < asked.STEPS:
                        return f"the checkpoint is gone: {loaded and loaded[1]['step']}"
                if self.name in ("evaluate", "predict", "finished"):
                    load_run(self.run)
            except UserError as error:
                return f"the run cannot be read: {error}"
        if not whole or self.expected is None:
            return None
        begun = (self.run / "config.json").exists()
        again = ["train", "--resume", "--out", str(self.run), "--quiet"]
        again += ["--steps", str(asked.STEPS + 1)] if self.name == "prolong" else []
        told = in_child(lambda: asked.call(*(again if begun else self.arguments)))
        try:
            found = json.loads((self.run / "result.json").read_text())["weights_sha256"]
        except (OSError, ValueError) as error:
            return f"it does not go on: {error} {told}"
        return None if found == self.expected else "it ends in other weights"


def _state(step: int) -> dict[str, Any]:
    return {"step": step, "seconds": 1.0, "rows": [], "kernels": {}}


def _answer(work: Callable[[], Any]) -> asked.Answer:
    try:
        work()
    except UserError as error:
        return asked.Answer(2, f"torchcaps: {error}\n", "")
    return asked.Answer(0, "", "")


def _cases(places: list[Place]) -> Iterator[tuple[Place, int, str, int, int]]:
    """Every place, call, and kind of fault; only reads and writes can be halved."""
    for place in places:
        place.fresh()
        for nth, call in enumerate(under_fault(place.run, place.command, -1, FAIL, 0)["calls"]):
            yield from ((place, nth, call, FAIL, error) for error in ERRORS)
            yield place, nth, call, KILL, 0
            if call in ("read", "write"):
                yield place, nth, call, HALF, 0
        if (place.run / "result.json").exists() and place.name in ("begin", "prolong"):
            place.expected = json.loads((place.run / "result.json").read_text())["weights_sha256"]


def campaign(room: Path, seconds: float, say: Callable[[str], None], job: int = 0, jobs: int = 1) -> dict[str, Any]:
    """All faults at all calls of all places, dealt out among several jobs, in random order, for so many seconds."""
    original, picture = room / "original", asked.make_picture(room / "x.png")
    asked.make_run(original)  # here, so that the processes that are forked have everything imported
    places = [
        Place("save", room, original, ["save"]),
        Place("begin", room, None, [*asked.TRAIN, "--steps", "2", "--checkpoint-seconds", "0", "--out", "RUN"]),
        Place("prolong", room, original, [*_train("RUN"), "--steps", str(asked.STEPS + 1)]),
        Place("finished", room, original, _train("RUN")),
        Place("evaluate", room, original, ["evaluate", "RUN", "--json"]),
        Place("predict", room, original, ["predict", "RUN", str(picture)]),
    ]
    cases = list(_cases(places))
    random.Random(0).shuffle(cases)
    counts, calls, answers, wrong, end = Counter(), Counter(), Counter(), [], time.monotonic() + seconds
    for number, (place, nth, call, mode, error) in list(enumerate(cases))[job::jobs]:
        if time.monotonic() > end:
            break
        place.fresh()
        told = under_fault(place.run, place.command, nth, mode, error)
        what = {FAIL: errno.errorcode.get(error, ""), HALF: "half", KILL: "killed"}[mode]
        counts[f"{place.name}: {what}"] += 1
        calls[call] += 1
        answers["killed" if told is None else "refused" if told["answer"][0] else "went on"] += 1
        fault = None if told is None else asked.Answer(*told["answer"]).fault()
        fault = fault or place.lost(number % 4 == 0)
        if fault:
            wrong.append({"place": place.name, "call": f"{call} {nth}", "fault": what, "what": fault[-1200:]})
            say(f"{place.name} {call} {nth} {what}\n{fault[-1200:]}")
    possible = {"possible": len(cases) if job == 0 else 0, "injected": sum(counts.values())}
    return {**possible, "by_place": counts, "by_call": calls, **answers, "wrong": len(wrong), "found": wrong[:5]}


def _train(run: str) -> list[str]:
    return ["train", "--resume", "--out", run, "--quiet"]


def main() -> None:
    room, seconds, job, jobs = Path(sys.argv[1]), *map(int, sys.argv[2:])
    torch.set_num_threads(1)
    SHIM.fault_name.restype, SHIM.fault_name.argtypes = ctypes.c_char_p, [ctypes.c_long]
    SHIM.fault_seen.restype = ctypes.c_long
    asked.register()
    print(json.dumps(campaign(room, seconds, lambda text: print(text, file=sys.stderr, flush=True), job, jobs)))


if __name__ == "__main__":
    main()
