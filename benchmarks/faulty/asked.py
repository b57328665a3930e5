"""The command line, called in this process, and what it may answer to a fault: nothing lost, one line, no traceback."""

import contextlib
import io
import signal
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from torchcaps.app.cli import main
from torchcaps.data import register_data, resolve
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.registry import MODELS, configure, register_model

MODEL = "capsnet-faults"
DATA = "digits-faults"
TRAIN = ["train", MODEL, "--data", DATA, "--batch", "8", "--validation", "5", "--quiet"]
STEPS = 3
LONG = 30.0


def register() -> None:
    """A network and data so small that they cost nothing."""
    if MODEL not in MODELS:
        small = configure("capsnet-mnist-small", channels=4, primary_types=1, decoder=(8,))
        register_model(MODEL, replace(small, dim=4), CapsNet, data=DATA)
        some = (resolve("mnist-mini").images(split) for split in ("train", "test"))
        register_data(DATA, *((images.images[:60], images.labels[:60]) for images in some))


class TooLong(BaseException):
    """A training that was told to go on for years does so: that is no fault, and nobody waits for it."""


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Of the processor's time."""

    def ring(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Answer(NamedTuple):
    code: int
    said: str
    """On standard error."""
    trace: str
    """Of an exception that nobody caught."""

    def fault(self) -> str | None:
        """What is wrong with this answer: a traceback, a failure without its one line, or another exit code."""
        if self.trace:
            return self.trace
        if "Traceback" in self.said:
            return self.said
        if self.code not in (0, 2):
            return f"exit code {self.code}: {self.said}"
        complaints = [line for line in self.said.splitlines() if line.startswith("torchcaps: ")]
        if self.code == 2 and (not self.said.strip() or len(complaints) != 1):
            return f"not one line: {self.said!r}"
        return None


def call(*arguments: str) -> Answer:
    """`torchcaps ARGUMENTS`."""
    errors, output = io.StringIO(), io.StringIO()
    code, trace = 0, ""
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
        try:
            with bounded(LONG):
                main(list(arguments))
        except TooLong:
            errors.write("stopped by the clock")
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except BaseException:
            trace = traceback.format_exc()
    return Answer(code, errors.getvalue(), trace)


def make_run(folder: Path, steps: int = STEPS) -> Path:
    """A finished run of the small network, with two checkpoints."""
    answer = call(*TRAIN, "--steps", str(steps), "--checkpoint-seconds", "0", "--out", str(folder))
    if answer.code or answer.trace:
        raise RuntimeError(f"the run could not be made: {answer}")
    return folder


def make_picture(path: Path) -> Path:
    Image.linear_gradient("L").resize((28, 28)).save(path)
    return path


def commands(run: Path, picture: Path, out: Path) -> dict[str, list[str]]:
    """What is asked of a run, by name."""
    longer: list[Any] = ["train", "--resume", "--out", run, "--quiet", "--steps", STEPS + 1]
    asked: dict[str, list[Any]] = {
        "evaluate": ["evaluate", run, "--json"],
        "predict": ["predict", run, picture],
        "resume": ["train", "--resume", "--out", run, "--quiet"],
        "prolong": longer,
        "figures": ["figures", run],
        "export": ["export", run, "--format", "torch", "--out", out],
    }
    return {name: [str(part) for part in parts] for name, parts in asked.items()}
