"""Progress of a download on standard error: a bar on a terminal, else one plain line."""

import sys
from types import TracebackType


class Progress:
    """Has the methods that pooch's downloaders call (`total`, `update`, `reset`, `close`), and `show`."""

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
        """Set the number of bytes received so far."""
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
        """Does nothing: pooch calls it after each file, but the bar stays until the `with` block ends."""
