"""What a training learns from and what it looks at meanwhile; refused where network and data do not fit."""

from dataclasses import dataclass

from torch import nn

from torchcaps.core.errors import UserError, argument
from torchcaps.data import DataSet
from torchcaps.data.sets import Batch, ImageStream, ScoredSet, Stream
from torchcaps.data.transforms import Augmentation
from torchcaps.training.config import TrainConfig
from torchcaps.training.networks import classes_of

WATCHED = 8


@dataclass(frozen=True)
class Task:
    """`watched` are a few images whose reconstructions become the frames of an animation."""

    stream: Stream
    validation: ScoredSet | None
    watched: Batch
    about: list[str]
    """What a person should know before the training, a line each."""


def load_task(config: TrainConfig, data: DataSet) -> Task:
    training, kept = data.training_and_validation(config.validation)
    if config.stop_at is not None and not len(kept):
        raise UserError(f"to stop at an accuracy, images must be held out: give {argument('validation')}")
    if config.per_class is not None:
        training = training.some_of_each(config.per_class, config.seed)
    try:
        augment = None if config.augment is None else Augmentation(**config.augment)
    except TypeError as error:
        raise UserError(f"the augmentation of this run is not one of this version: {error}") from None
    stream, about = data.stream(training, config.seed, config.pairs, augment), []
    if isinstance(stream, ImageStream):
        if config.balance in ("classes", "auto" if stream.uneven else None):
            stream = stream.balanced()
        about = [stream.about_balance()] if data.own and stream.uneven else []
    if config.per_class is None and config.batch > len(stream):
        raise UserError(f"a batch of {config.batch} is more than the {len(stream)} images to train on")
    validation = data.scored(kept, len(kept)) if len(kept) else None
    watched = next(validation.batches(WATCHED)) if validation is not None else stream.batch(0, WATCHED)
    return Task(stream, validation, watched, about)


def check_fits(model: nn.Module, name: str, data: DataSet, shown: Batch) -> None:
    """Refuse images of another size, labels beyond the classes, or another number of objects."""
    given, objects = tuple(shown.images.shape[1:]), shown.labels.shape[1]
    config = getattr(model, "config", None)
    wanted = getattr(config, "image", given)
    if wanted != given:
        raise UserError(f"{name} takes images of {wanted}, {data.title} has {given}: choose the other to fit")
    told, classes = classes_of(model, name, shown), len(data.classes)
    # A network without a configuration may tell more apart than the labels that happen to be there.
    if told < classes or (told > classes and config is not None):
        raise UserError(f"{name} tells {told} classes apart, {data.title} has {classes}")
    if getattr(config, "objects", objects) != objects:
        raise UserError(f"{name} looks for {config.objects} things in an image, {data.title} shows {objects}")  # pyright: ignore
