"""What a person waiting sees, always on standard error: a bar on a terminal, else a line at the start and now and then.

The one place for downloads (bytes), for images that are read, and for trainings (a share of the budget).
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from torchcaps.core.text import printable

QUIET_SECONDS = 10.0
"""Between two lines where there is no terminal."""
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Inside, nothing is said and no bar is shown; errors are raised all the same."""
    before = _quiet.set(quiet or _quiet.get())
    try:
        yield
    finally:
        _quiet.reset(before)


def say(line: str) -> None:
    """A line to the person waiting."""
    if not _quiet.get():
        print(printable(line), file=sys.stderr, flush=True)


class Progress:
    """Has the methods that pooch's downloaders call (`total`, `update`, `reset`, `close`), and `show`."""

    def __init__(
        self, label: str, total: float | None = None, unit: Literal["bytes", "images", "share"] = "bytes"
    ) -> None:
        self.label, self.unit, self.done = label, unit, 0.0
        self._total, self._bar = total, None
        self.began = time.monotonic()
        self.last_line = 0.0 if unit == "share" else self.began

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty() and not _quiet.get():
            from rich.markup import escape

            self._bar = _bar(self.unit)
            self._task = self._bar.add_task(escape(printable(self.label)), total=self._total, status="")
            self._bar.start()
        elif self.unit != "share":
            self._print(self.label)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    @property
    def rate(self) -> float:
        """Of what is counted, a second."""
        return self.done / max(time.monotonic() - self.began, 1e-6)

    def show(self, done: float, status: str = "", line: str | None = None, at_once: bool = False) -> None:
        """So much is done. Where there is no bar, `line` is printed: `at_once`, or if the last is some time ago."""
        self.done = done
        if self._bar:
            self._bar.update(self._task, completed=done, status=status)
        elif line and (at_once or time.monotonic() - self.last_line > QUIET_SECONDS):
            self._print(line)

    def _print(self, line: str) -> None:
        say(line)
        self.last_line = time.monotonic()

    @property
    def total(self) -> float | None:
        return self._total

    @total.setter
    def total(self, expected: float) -> None:
        self._total = expected or None
        if self._bar:
            self._bar.update(self._task, total=self._total)

    def update(self, count: float) -> None:
        line, done = None, self.done + count
        if self.unit == "images" and self._total:
            left = (self._total - done) / max(self.rate, 1e-6)
            line = f"  {done:,.0f} of {self._total:,.0f} images, {self.rate:,.0f} a second, {left:.0f} s left"
        self.show(done, f"{self.rate:,.0f} images/s" if self.unit == "images" else "", line)

    def reset(self) -> None:
        self.show(0)

    def close(self) -> None:
        """pooch calls this after each file; the bar goes with the `with` block."""


def _bar(unit: str) -> Any:
    from rich import progress
    from rich.console import Console

    amounts = {
        "bytes": (progress.DownloadColumn(), progress.TransferSpeedColumn()),
        "images": (progress.MofNCompleteColumn(),),
        "share": (progress.TaskProgressColumn(),),
    }
    status = progress.TextColumn("{task.fields[status]}")
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *amounts[unit], status)
    clock = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    return progress.Progress(*columns, *clock, console=Console(stderr=True), transient=unit != "share")
