"""Everything that decides the outcome of a training, as one frozen value."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from torchcaps.data import TEST_PAIRS
from torchcaps.models.registry import find
from torchcaps.training.optim import OptimiserName, Schedule


@dataclass(frozen=True)
class TrainConfig:
    """What a run folder keeps of it in `config.json`. A model or data without a name is known by class or hash."""

    model: str
    data: str
    epochs: float | None = None
    steps: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    batch: int = 128
    optimiser: OptimiserName = "adam"
    lr: float = 1e-3
    schedule: Schedule = "decay"
    warmup: float = 0.0
    average: float = 0.0
    clip: float | None = None
    """The largest norm of a step's gradient, of all parameters together; a longer one is shortened to it."""
    validation: int = 2000
    pairs: int | None = None
    device: str = "auto"
    checkpoint_seconds: float = 30.0
    decay_steps: int = 2000
    per_class: int | None = None
    """Learn from so many images of each class only, drawn by the seed."""
    test_pairs: int = TEST_PAIRS
    stop_at: float | None = None
    """Stop as soon as this accuracy is reached on the validation images, looked at every `LOG_EVERY` steps."""
    augment: dict[str, Any] | None = None
    """Fields of `Augmentation`, instead of what the data is meant for."""
    balance: Literal["auto", "none", "classes"] = "auto"
    """Whether rare classes are shown more often; `auto` does so where the largest is over ten times the smallest."""
    test: str | None = None
    """Another data set that is scored at the end, instead of the data's own test images."""
    loss: str | None = None
    """Where a loss of one's own is defined."""

    def total_steps(self, images: int) -> int | None:
        """Of a budget in steps or epochs, the smaller one of both."""
        epochs = None if self.epochs is None else max(1, round(self.epochs * images / self.batch))
        return min((count for count in (self.steps, epochs) if count is not None), default=None)


def defaults_for(model: str, **given: Any) -> TrainConfig:
    """The training that suits a model, with whatever was asked for instead."""
    entry = find(model)
    config = replace(TrainConfig(model, entry.data), **entry.training)
    return replace(config, **{name: value for name, value in given.items() if value is not None})
