"""Everything that decides the outcome of a training, as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from torchcaps.core.errors import UserError, argument
from torchcaps.core.files import is_as_annotated
from torchcaps.data import TEST_PAIRS
from torchcaps.models.registry import find
from torchcaps.training.optim import OptimiserName, Schedule

POSITIVE = (
    "epochs",
    "steps",
    "max_seconds",
    "batch",
    "lr",
    "muon_factor",
    "clip",
    "pairs",
    "decay_steps",
    "per_class",
    "test_pairs",
)
NOT_NEGATIVE = ("seed", "validation", "checkpoint_seconds", "warmup", "average")


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
    muon_factor: float = 3.0
    """With the optimiser `muon`, how many times `lr` is the learning rate of the inner convolutions."""
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


def check_numbers(training: Mapping[str, Any]) -> None:
    """Raise an error that names the first amount that cannot be."""
    for name in (*POSITIVE, *NOT_NEGATIVE):
        value, positive = training.get(name), name in POSITIVE
        if value is not None and not (0 <= value < 2**63 and (value or not positive)):
            least = "more than 0" if positive else "0 or more"
            raise UserError(f"{argument(name)} must be {least}, not {value}")
    for name in ("warmup", "average"):
        if (training.get(name) or 0.0) >= 1:
            raise UserError(f"{argument(name)} must be less than 1, not {training[name]}")


def config_from(saved: Mapping[str, Any], path: Path) -> TrainConfig:
    """The training that a file describes; what it does not say is as it was before there was such a field."""
    kinds = get_type_hints(TrainConfig)
    if strange := sorted(set(saved) - set(kinds)) or sorted({"model", "data"} - set(saved)):
        raise UserError(f"{path} is damaged, or of a newer version: '{strange[0]}' of its training")
    for name, value in saved.items():
        if not is_as_annotated(value, kinds[name]):
            raise UserError(f"{path} is damaged: '{name}' of its training is {str(value)[:60]!r}")
    try:
        check_numbers(saved)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return TrainConfig(**saved)
