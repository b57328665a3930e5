"""What the person waiting for a training sees, on standard error: a bar on a terminal, else a line now and then."""

from pathlib import Path
from typing import Any

from torchcaps.core.errors import UserError
from torchcaps.core.progress import Progress
from torchcaps.training.config import TrainConfig


class Reporter:
    """Turns the rows that are logged into the words beside the bar, and into TensorBoard's files if they are wanted."""

    def __init__(self, config: TrainConfig, tensorboard: Path | None = None) -> None:
        self.batch = config.batch
        self.bar = Progress(config.model, 1.0, "share")
        self.first: tuple[int, float] | None = None
        self.writer = _tensorboard(tensorboard) if tensorboard else None

    def __enter__(self) -> "Reporter":
        self.bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.__exit__()
        if self.writer:
            self.writer.close()

    def show(self, row: dict[str, Any], progress: float, seconds: float) -> None:
        step = row["step"]
        if self.first is None:
            self.first = (step, seconds)
        elapsed = seconds - self.first[1]
        rate = (step - self.first[0]) * self.batch / elapsed if elapsed > 0 else step * self.batch / seconds
        status = f"loss {row['total']:.4f}  accuracy {row['train_accuracy']:.2%}  {rate:,.0f} images/s"
        if "validation_accuracy" in row:
            status += f"  validation {row['validation_accuracy']:.2%}"
        if self.writer:
            for name in row.keys() - {"step"}:
                self.writer.add_scalar(name, row[name], step)
        left = seconds / progress - seconds if progress > 0 else 0.0
        line = f"step {step:>6}  {status}  {seconds:.0f} s, {left:.0f} s left"
        self.bar.show(progress, status, line, at_once="validation_accuracy" in row)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("TensorBoard is not installed: pip install 'torchcaps[tensorboard]'") from None
    return SummaryWriter(str(folder / "tensorboard"))
