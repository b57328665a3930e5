"""What the person waiting for a training sees, on standard error: a bar on a terminal, else a line now and then."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.core.errors import UserError

if TYPE_CHECKING:
    from torchcaps.training.loop import TrainConfig

QUIET_SECONDS = 10.0


class Reporter:
    def __init__(self, config: "TrainConfig", tensorboard: Path | None = None) -> None:
        self.config = config
        self.last_line = 0.0
        self.first: tuple[int, float] | None = None
        self.bar: Any = None
        self.writer = _tensorboard(tensorboard) if tensorboard else None

    def __enter__(self) -> "Reporter":
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TaskProgressColumn(),
                progress.TextColumn("{task.fields[status]}"),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
            )
            self.bar = progress.Progress(*columns, console=Console(stderr=True))
            self.task = self.bar.add_task(self.config.model, total=1.0, status="")
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()
        if self.writer:
            self.writer.close()

    def show(self, row: dict[str, Any], progress: float, seconds: float) -> None:
        step = row["step"]
        if self.first is None:
            self.first = (step, seconds)
        elapsed = seconds - self.first[1]
        rate = (
            (step - self.first[0]) * self.config.batch / elapsed if elapsed > 0 else step * self.config.batch / seconds
        )
        status = f"loss {row['total']:.4f}  accuracy {row['train_accuracy']:.2%}  {rate:,.0f} images/s"
        if "validation_accuracy" in row:
            status += f"  validation {row['validation_accuracy']:.2%}"
        if self.writer:
            for name in row.keys() - {"step"}:
                self.writer.add_scalar(name, row[name], step)
        if self.bar:
            self.bar.update(self.task, completed=progress, status=status)
        elif time.monotonic() - self.last_line > QUIET_SECONDS or "validation_accuracy" in row:
            left = seconds / progress - seconds if progress > 0 else 0.0
            print(f"step {step:>6}  {status}  {seconds:.0f} s, {left:.0f} s left", file=sys.stderr, flush=True)
            self.last_line = time.monotonic()


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("TensorBoard is not installed: pip install 'torchcaps[tensorboard]'") from None
    return SummaryWriter(str(folder / "tensorboard"))
