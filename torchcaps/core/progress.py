"""What the person waiting for a download sees: a bar on a terminal, else a plain line, always on standard error."""

import sys
from types import TracebackType


class Progress:
    """Speaks the protocol of pooch's downloaders (`total`, `update`, `reset`, `close`) beside its own `show`."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._bar = None

    def __enter__(self) -> "Progress":
        if not sys.stderr.isatty():
            print(self.label, file=sys.stderr, flush=True)
            return self
        from rich import progress
        from rich.console import Console

        columns = (
            progress.TextColumn("{task.description}"), progress.BarColumn(), progress.DownloadColumn(),
            progress.TransferSpeedColumn(), progress.TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self.label, total=None)
        self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, done: int) -> None:
        """So many bytes have arrived."""
        if self._bar:
            self._bar.update(self._task, completed=done)

    @property
    def total(self) -> int | None:
        return None

    @total.setter
    def total(self, expected: int) -> None:
        if self._bar:
            self._bar.update(self._task, total=expected or None)

    def update(self, count: int) -> None:
        if self._bar:
            self._bar.update(self._task, advance=count)

    def reset(self) -> None:
        self.show(0)

    def close(self) -> None:
        """pooch calls this after each file; the bar goes with the `with` block."""
