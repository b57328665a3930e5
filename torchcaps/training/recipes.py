"""From a model and a data set, as a person names them, to the network and the training that suit both."""

from argparse import Namespace
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps import data as named
from torchcaps.core.errors import UserError
from torchcaps.data import folder
from torchcaps.data.transforms import Augmentation, augmentation
from torchcaps.models.registry import Entry, suited, suited_training

if TYPE_CHECKING:
    from torchcaps.training.loop import TrainConfig

WHOLE = {"cifar10": "cifar10-32"}
"""Where the paper's network sees a crop, a network that sizes itself takes the whole image."""
LARGEST_SIZE = 1024


@dataclass(frozen=True)
class Fitted:
    """What a training is given on top of the model's own configuration."""

    data: str
    spec: named.DataSpec
    augment: dict[str, Any] | None
    overrides: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def summary(self, config: "TrainConfig") -> str:
        c, h, w = self.spec.image
        design = self.overrides.get("backbone") or self.overrides.get("design")
        parts = [
            f"sized to {len(self.spec.classes)} classes of {h}x{w} images in {'colour' if c == 3 else f'{c} channels'}",
            f"{design} backbone",
            f"{config.optimiser} with a {config.schedule} schedule and batches of {config.batch}",
        ]
        if self.spec.offsets == (0, 0):
            chosen = augmentation(self.spec.augment) if config.augment is None else Augmentation(**config.augment)
            amounts = [f"{name} {value}" for name, value in asdict(chosen).items() if value]
            parts.append(f"augmentation: {', '.join(amounts) or 'none'}")
        return "; ".join(parts)


def fit_to_data(entry: Entry, args: Namespace) -> Fitted:
    """Of models that size themselves everything is fitted; another model keeps its size, and images come to it."""
    data = args.data or entry.data
    data = WHOLE.get(data, data) if entry.fits_any else data
    own = data not in named.DATA
    size = _size(args.size)
    if size and (not own or folder.is_record(data)):
        raise UserError(f"--size is for your own images; {data} has a size of its own")
    if own and args.validation is not None:
        raise UserError("--validation is for sets by name; divide your own images by folders named train, val and test")
    spec = named.find(data, size)
    chosen = _augmentation(args, spec)
    if own:
        data = str(Path(data).expanduser().resolve())
    if entry.fits_any and data != entry.data:
        overrides = suited(args.model, spec.image, len(spec.classes), spec.objects)
        return Fitted(data, spec, chosen, overrides, suited_training(_fewest_to_train_on(data, size)))
    if not own:
        return Fitted(data, spec, chosen)
    image = (entry.config.image[0], *size) if size else entry.config.image
    return Fitted(data, spec, chosen, {"image": image, "classes": len(spec.classes)})


def _fewest_to_train_on(data: str, size: tuple[int, int] | None) -> int:
    """What will be left of the images for training, however they are divided and whichever cannot be read."""
    if data in named.DATA:
        return 2**16
    if folder.is_record(data):
        return len(folder.load(data).rows("train"))
    listing = folder.survey(data, size).listing
    count = sum(file.split in (None, "train") for file in listing.files)
    return max(1, int(0.7 * count) - 2 * len(listing.classes))


def _size(text: str | None) -> tuple[int, int] | None:
    """Height and width, of which one number gives both."""
    if text is None:
        return None
    try:
        sides = [int(part) for part in text.lower().split("x")]
        height, width = sides if len(sides) == 2 else (*sides, *sides)
    except ValueError:
        raise UserError(f"--size takes a number of pixels, or HEIGHTxWIDTH, not '{text}'") from None
    if not all(8 <= side <= LARGEST_SIZE for side in (height, width)):
        raise UserError(f"--size must be from 8 to {LARGEST_SIZE} pixels a side, not '{text}'")
    return height, width


def _augmentation(args: Namespace, spec: named.DataSpec) -> dict[str, Any] | None:
    """The preset, changed by single flags; the data's own where there are only flags; None for just the data's own."""
    names = [field.name for field in fields(Augmentation)]
    changed = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.augment is None and not changed:
        return None
    low, high = spec.offsets
    usual = spec.augment if low == high == 0 else "shift" if low == -high else "none"
    for name, value in changed.items():
        limit = {"shift": min(spec.image[1:]) - 1, "rotation": 180, "flip": 1}.get(name, 0.99)
        if not 0 <= value <= limit:
            flag = "rotate" if name == "rotation" else name
            raise UserError(f"--{flag} must be from 0 to {limit}, not {value}")
    own = augmentation(args.augment or usual)
    if args.augment is None:
        own = replace(own, colour=spec.jitter or own.colour)
    return asdict(replace(own, **changed))
