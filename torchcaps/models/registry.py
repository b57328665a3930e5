"""Models by name: a table of configurations, which `register_model` adds to."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from torchcaps.core.errors import UserError
from torchcaps.models.baseline import CNN, CNNConfig
from torchcaps.models.capsnet import CapsNet, CapsNetConfig
from torchcaps.models.config import KINDS, Kind, check_fields
from torchcaps.models.matrix import MatrixCaps, MatrixConfig
from torchcaps.models.pretrained import load_pretrained
from torchcaps.models.timm_backbones import is_of_timm, offer
from torchcaps.routing import check_options

KINDS |= {
    "capsnet": Kind(CapsNetConfig, CapsNet, CapsNet.__module__),
    "cnn": Kind(CNNConfig, CNN, CNN.__module__),
    "matrix": Kind(MatrixConfig, MatrixCaps, MatrixCaps.__module__),
}


@dataclass(frozen=True)
class Entry:
    """A configuration, the data and the training it is meant for, and a one-line description."""

    config: Any
    """A frozen dataclass with at least `image`, `classes` and `objects`; its class has an entry in `KINDS`."""
    data: str
    about: str
    training: dict[str, Any] = field(default_factory=dict)
    fits_any: bool = False
    """Whether it adapts to any image size and number of classes (see `suited`)."""


def _compact(**fields: Any) -> CapsNetConfig:
    small = {"channels": 128, "primary_types": 4, "reconstruction_weight": 0.007, **fields}
    return CapsNetConfig(backbone="compact", decoder="conv", **small)


def _fine(**fields: Any) -> CapsNetConfig:
    own = {"backbone": "fine", "primary_types": 8, "decoder": "conv", "reconstruction_weight": 0.007}
    routing = {"iterations": 3, "sharpness": 8.0}
    return CapsNetConfig(**{**own, "routing_options": routing, **_OVERLAPPING, **fields})


def _photographs(channels: int, side: int) -> CapsNetConfig:
    return CapsNetConfig(image=(channels, side, side), **_photo_design((channels, side, side)))


def _photo_design(image: tuple[int, int, int]) -> dict[str, Any]:
    """The reconstruction loss of a whole image has the same weight as in the paper, 0.0005 for each of 784 pixels."""
    weight = 0.0005 * 784 / math.prod(image)
    own = {"backbone": "photo", "channels": 128, "primary_types": 16}
    return {**own, "decoder": "conv", "reconstruction_weight": weight}


# Found by experiment on validation pairs; docs/log.md has what was tried.
_FAST = {"optimiser": "muon", "lr": 1e-2, "schedule": "linear", "warmup": 0.05}
_PHOTO = {**_FAST, "muon_factor": 8.0}
# For weights that have learned before: large steps would undo it.
_TUNED = {"optimiser": "adam", "lr": 1e-3, "schedule": "linear", "warmup": 0.05}
_OVERLAPPING = {"image": (1, 36, 36), "objects": 2, "window": 28, "standardise": True, "channels": 160}

MODELS: dict[str, Entry] = {
    "capsnet": Entry(CapsNetConfig(), "mnist", "adapts to any image size and number of classes", fits_any=True),
    "cnn": Entry(CNNConfig(design="compact"), "mnist", "the same backbones without the capsules", _FAST, fits_any=True),
    "capsnet-mnist": Entry(CapsNetConfig(), "mnist", "the paper's network"),
    "capsnet-multimnist": Entry(
        CapsNetConfig(image=(1, 36, 36), objects=2), "multimnist", "the paper's network for overlapping digits"
    ),
    "capsnet-affnist": Entry(CapsNetConfig(image=(1, 40, 40)), "translated-mnist", "the paper's network on 40x40"),
    "capsnet-cifar10": Entry(
        CapsNetConfig(
            image=(3, 24, 24),
            standardise=True,
            backbone="paper-padded",
            primary_types=64,
            decoder=None,
            routing_options={"iterations": 3, "leaky": True},
            recipe="official",
        ),
        "cifar10",
        "24x24 crops, 64 primary types, none of the above, as in the authors' code",
    ),
    "capsnet-smallnorb": Entry(CapsNetConfig(image=(2, 32, 32), classes=5), "smallnorb", "stereo pairs, 32x32 crops"),
    "capsnet-svhn": Entry(
        CapsNetConfig(image=(3, 32, 32), channels=64, primary_types=16, primary_dim=6, dim=8),
        "svhn",
        "the paper's smaller network",
    ),
    "capsnet-mnist-small": Entry(_compact(), "mnist", "trains in three minutes on a laptop", _FAST),
    "capsnet-affnist-small": Entry(
        _compact(image=(1, 40, 40)), "translated-mnist", "the same for digits anywhere on 40x40", _FAST
    ),
    "capsnet-smallnorb-small": Entry(
        _compact(image=(2, 32, 32), classes=5), "norb-style", "the same for stereo pairs of toys", _FAST
    ),
    "capsnet-multimnist-small": Entry(
        _compact(**_OVERLAPPING),
        "multimnist",
        "takes overlapping digits apart after minutes on a laptop",
        _FAST,
    ),
    "capsnet-multimnist-fine": Entry(
        _fine(),
        "multimnist",
        "the same, more accurate: layers that see every pixel, couplings that decide",
        {**_FAST, "batch": 64},
    ),
    "capsnet-multimnist-wide": Entry(
        _fine(channels=240),
        "multimnist",
        "the same with half as many channels again: the most accurate",
        {**_FAST, "batch": 64},
    ),
    "capsnet-cifar10-small": Entry(_photographs(3, 32), "cifar10-32", "whole photographs, minutes on a laptop", _PHOTO),
    "capsnet-svhn-small": Entry(_photographs(3, 32), "svhn", "the same for house numbers", _PHOTO),
    "capsnet-fashion-small": Entry(_photographs(1, 28), "fashion-mnist", "the same for pieces of clothing", _PHOTO),
    "capsnet-mnist-conv": Entry(
        _compact(conv=((8, 8, 2, 1),), conv_init_std=0.8),
        "mnist",
        "convolutional capsules with dynamic routing between primary ones and classes",
        _FAST,
    ),
    "cnn-mnist": Entry(CNNConfig(), "mnist", "the paper's baseline"),
    "cnn-multimnist": Entry(
        CNNConfig(image=(1, 36, 36), objects=2, design="multimnist"), "multimnist", "the paper's baseline"
    ),
    "cnn-mnist-small": Entry(CNNConfig(design="compact"), "mnist", "capsnet-mnist-small without the capsules", _FAST),
    "cnn-multimnist-small": Entry(
        CNNConfig(design="compact", **_OVERLAPPING),
        "multimnist",
        "capsnet-multimnist-small without the capsules",
        _FAST,
    ),
    "cnn-multimnist-fine": Entry(
        CNNConfig(design="fine", **_OVERLAPPING),
        "multimnist",
        "capsnet-multimnist-fine without the capsules",
        {**_FAST, "batch": 64},
    ),
    "cnn-cifar10-small": Entry(
        CNNConfig((3, 32, 32), design="photo", label_smoothing=0.2),
        "cifar10-32",
        "capsnet-cifar10-small without the capsules",
        _PHOTO,
    ),
    "cnn-affnist": Entry(
        CNNConfig(image=(1, 40, 40), design="affnist"), "translated-mnist", "a CNN as large as capsnet-affnist"
    ),
    "cnn-affnist-small": Entry(
        CNNConfig(image=(1, 40, 40), design="affnist-small"),
        "translated-mnist",
        "max-pooling and dropout, as large as capsnet-mnist-small on 40x40",
        {**_FAST, "lr": 3e-3},
    ),
}


def _matrix(**fields: Any) -> MatrixConfig:
    """With a softer E-step and wider transforms than the paper has, three iterations learn; docs/log.md has trials."""
    return MatrixConfig(routing_options={"iterations": 3, "density_scale": 0.25}, init_std=0.3, **fields)


_EM = {"lr": 3e-3, "schedule": "linear", "warmup": 0.05, "batch": 64}
_SMALL: dict[str, Any] = {"channels": 64, "primary_types": 8, "types": (16, 16)}

MODELS |= {
    "matrix-smallnorb": Entry(_matrix(), "smallnorb", "matrix capsules with EM routing, the paper's network", _EM),
    "matrix-smallnorb-small": Entry(_matrix(**_SMALL), "smallnorb", "the paper's smaller one", _EM),
    "matrix-smallnorb-stem": Entry(
        _matrix(
            stem=((16, 3, 1), (32, 3, 2), (40, 3, 1), (40, 3, 1)),
            norm=True,
            primary_types=8,
            dropout=0.3,
            types=(8, 16),
        ),
        "norb-style",
        "as large, with four small convolutions below the capsules instead of one large one",
        {**_EM, "batch": 32, "clip": 5.0},
    ),
    "matrix-mnist": Entry(
        _matrix(image=(1, 28, 28), classes=10, **_SMALL), "mnist", "the same for handwritten digits", _EM
    ),
    "cnn-smallnorb": Entry(
        CNNConfig(image=(2, 32, 32), classes=5, design="smallnorb"), "smallnorb", "the baseline of that paper"
    ),
    "cnn-smallnorb-small": Entry(
        CNNConfig(image=(2, 32, 32), classes=5, design="smallnorb-small"),
        "smallnorb",
        "a CNN as large as matrix-smallnorb-small",
    ),
    "cnn-smallnorb-norm": Entry(
        CNNConfig(image=(2, 32, 32), classes=5, design="smallnorb-norm"),
        "smallnorb",
        "another of that size, with batch normalisation",
        _EM,
    ),
}


def list_models() -> list[str]:
    return list(MODELS)


def find(name: str) -> Entry:
    if name not in MODELS:
        raise UserError(f"unknown model '{name}'; there are {', '.join(MODELS)}")
    return MODELS[name]


def suited(
    name: str, image: tuple[int, int, int], classes: int, objects: int = 1, own_backbone: bool = False
) -> dict[str, Any]:
    """The configuration of a model that adapts to its images, for images other than the paper's.

    Small grey images, of digits or letters, get the compact backbone, larger and coloured ones the backbone for
    photographs.
    """
    c, h, w = image
    small = c == 1 and min(h, w) >= 16 and (max(h, w) <= 28 or objects > 1) and not own_backbone
    shape = {"image": image, "classes": classes, "objects": objects}
    if isinstance(find(name).config, CNNConfig):
        return {**shape, **({"design": "compact"} if small else {"design": "photo", "label_smoothing": 0.2})}
    if not small:
        return {**shape, **_photo_design(image)}
    own = {"backbone": "compact", "channels": 128, "primary_types": 4, "reconstruction_weight": 0.007}
    return {**shape, **own, "decoder": "conv"}


def is_foreign(backbone: Any) -> bool:
    """A module of one's own, or a network of timm, not one of the backbones here."""
    return not isinstance(backbone, str) or is_of_timm(backbone)


def suited_training(images: int, design: Any = None) -> dict[str, Any]:
    """The training of a network that adapts to its images: ten steps or more an epoch, if there are enough images."""
    batch = next((size for size in (128, 64, 32, 16) if 10 * size <= images), min(8, images))
    if is_of_timm(design):
        return {**_TUNED, "batch": batch}
    return {**(_PHOTO if design == "photo" else _FAST), "batch": batch}


def register_model(
    name: str,
    config: Any,
    build: Callable[[Any], nn.Module],
    *,
    data: str = "mnist",
    about: str = "",
    training: dict[str, Any] | None = None,
) -> None:
    """Add a model of your own to the table: `config` is a frozen dataclass, `build(config)` the network.

    From then on `create_model(name)` makes it, and the command line knows it in a program that registers it. The
    configuration has at least the fields `image`, `classes` and `objects`; `data` and `training` are what `train` uses
    by default.
    """
    missing = [field for field in ("image", "classes", "objects") if not hasattr(config, field)]
    if not dataclasses.is_dataclass(config) or isinstance(config, type) or missing:
        lacks = f" without {', '.join(missing)}" if missing else ""
        raise UserError(f"the configuration of '{name}' must be a dataclass instance, not {config!r}{lacks}")
    if name in MODELS or name in KINDS:
        raise UserError(f"there is a model '{name}' already: choose another name")
    known = next((kind for kind in KINDS.values() if kind.config is type(config)), None)
    if known is None:
        KINDS[name] = Kind(type(config), build, type(config).__module__)
    elif known.build is not build:
        raise UserError(
            f"{type(config).__name__} belongs to another network: give '{name}' a configuration class of its own"
        )
    MODELS[name] = Entry(config, data, about, training or {})


def build(config: Any) -> Any:
    """The network of a configuration."""
    return next(kind for kind in KINDS.values() if kind.config is type(config)).build(config)


def configure(name: str, **overrides: Any) -> Any:
    """The named configuration with some fields changed; unknown fields are an error."""
    entry = find(name)
    config = entry.config
    image = tuple(overrides.get("image", config.image))
    backbone = overrides.get("backbone", "")
    own_backbone = is_foreign(backbone)
    offer(backbone, pretrained=True)
    adapts = own_backbone or (image != config.image and not {"backbone", "design"} & set(overrides))
    if entry.fits_any and adapts:
        classes, objects = (overrides.get(key, getattr(config, key)) for key in ("classes", "objects"))
        overrides = {**suited(name, image, classes, objects, own_backbone), **overrides}
    check_fields(name, config, overrides)
    if hasattr(config, "routing_options"):
        overrides = _with_own_options(config, overrides)
    return dataclasses.replace(config, **overrides)


def _with_own_options(config: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """The routing options of a configuration are for its own routing: another routing starts with its own defaults."""
    routing = overrides.get("routing", config.routing)
    kept = config.routing_options if routing == config.routing else {}
    options = overrides.get("routing_options", kept)
    check_options(routing, options)
    return {**overrides, "routing_options": options}


def create_model(name: str, pretrained: bool = False, **overrides: Any) -> Any:
    """A model by its name, as in timm: `create_model("capsnet", image=(3, 64, 64), classes=7)`.

    `routing` is a name, a class or an instance; `backbone` a name, `timm:NAME`, or any module from images to a feature
    map.
    `pretrained` weights fit any number of classes: with another one than theirs, the class capsules begin anew.
    """
    config = configure(name, **overrides)
    if pretrained and dataclasses.replace(config, classes=find(name).config.classes) != find(name).config:
        raise UserError("pretrained weights fit the model with other classes, but with no other change")
    model = build(config)
    if pretrained:
        load_pretrained(name, model)
    return model


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
