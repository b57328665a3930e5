"""From a model and a data set, as a person names them, to the network and the training that suit both."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from torchcaps.core.errors import UserError, argument
from torchcaps.data import DataSet, resolve
from torchcaps.data.transforms import Augmentation, augmentation
from torchcaps.models.registry import Entry, find, is_foreign, suited, suited_training
from torchcaps.models.timm_backbones import is_of_timm
from torchcaps.training.config import TrainConfig

WHOLE = {"cifar10": "cifar10-32"}
"""Where the paper's network sees a crop, a network that sizes itself takes the whole image."""
LARGEST_SIZE = 1024
Augment = str | Mapping[str, Any] | Augmentation | None


def data_for(entry: Entry, data: Any, size: str | int | tuple[int, int] | None = None, **options: Any) -> DataSet:
    """The data set that a model is trained on: its own if none is named."""
    data = entry.data if data is None else data
    if entry.fits_any and isinstance(data, str):
        data = WHOLE.get(data, data)
    found = resolve(data, size=sides(size), **options)
    if size is not None and not getattr(found, "size", None):
        raise UserError(f"{argument('size')} is for your own images; {found.title} has a size of its own")
    return found


def suited_to(model: str, data: DataSet, backbone: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the network, and fields of `TrainConfig`, that go with the data, and with a backbone that was chosen.

    A model that sizes itself is fitted in everything; another keeps its size and design, and takes the classes.
    """
    entry = find(model)
    if entry.fits_any and data.name != entry.data:
        foreign = backbone is not None and is_foreign(backbone)
        overrides = suited(model, data.image, len(data.classes), data.objects, foreign)
        design = backbone if is_of_timm(backbone) else overrides.get("backbone") or overrides.get("design")
        return overrides, suited_training(data.training_images(), design)
    if not data.own:
        return {}, {}
    overrides = {"image": data.image_for(entry.config.image), "classes": len(data.classes)}
    return overrides | ({"objects": data.objects} if data.objects != entry.config.objects else {}), {}


def summary(config: TrainConfig, data: DataSet, overrides: Mapping[str, Any]) -> str:
    """What was chosen for a network that sizes itself."""
    c, h, w = data.image
    design = overrides.get("backbone") or overrides.get("design")
    chosen = data.augment if config.augment is None else Augmentation(**config.augment)
    amounts = [f"{name} {value}" for name, value in asdict(chosen).items() if value]
    return "; ".join((
        f"sized to {len(data.classes)} classes of {h}x{w} images in {'colour' if c == 3 else f'{c} channels'}",
        f"{design if isinstance(design, str) else type(design).__name__} backbone",
        f"{config.optimiser} with a {config.schedule} schedule and batches of {config.batch}",
        f"augmentation: {', '.join(amounts) or 'none'}",
    ))  # fmt: skip


def sides(size: str | int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Height and width, of which one number gives both; as text "24" or "24x32"."""
    if size is None:
        return None
    try:
        given = size.lower().split("x") if isinstance(size, str) else size if isinstance(size, tuple) else (size,)
        found = [int(part) for part in given]
        height, width = found if len(found) == 2 else (*found, *found)
    except ValueError:
        raise UserError(f"{argument('size')} takes a number of pixels, or HEIGHTxWIDTH, not '{size}'") from None
    if not all(8 <= side <= LARGEST_SIZE for side in (height, width)):
        raise UserError(f"{argument('size')} must be from 8 to {LARGEST_SIZE} pixels a side, not '{size}'")
    return height, width


def chosen_augmentation(data: DataSet, augment: Augment) -> dict[str, Any] | None:
    """None for the data's own; else a preset by its name, or single amounts.

    The amounts may come with the preset that they change, "own" for the data's: `{"preset": "own", "shift": 4}`.
    """
    if augment is None or isinstance(augment, Augmentation):
        return asdict(augment) if augment else None
    changed: dict[str, Any] = {"preset": augment} if isinstance(augment, str) else dict(augment)
    preset = changed.pop("preset", "none")
    known = [field.name for field in fields(Augmentation)]
    for name, value in changed.items():
        if name not in known:
            raise UserError(f"unknown augmentation '{name}'; there are {', '.join(known)}")
        pixels = min(data.image[1:]) - 1
        limits = {"shift": pixels, "bend": pixels, "rotation": 180, "flip": 1, "strokes": 1, "part": 1}
        limit = limits.get(name, 0.99)
        if not 0 <= value <= limit:
            raise UserError(f"{argument(name)} must be from 0 to {limit}, not {value}")
    return asdict(replace(data.augment if preset == "own" else augmentation(preset), **changed))
