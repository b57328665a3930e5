"""Models by name."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from torchcaps.errors import UserError
from torchcaps.models.baseline import CNN, CNNConfig
from torchcaps.models.capsnet import CapsNet, CapsNetConfig

Config = CapsNetConfig | CNNConfig
Model = CapsNet | CNN


@dataclass(frozen=True)
class Entry:
    """A configuration, the data and the training it is meant for, and a line about it."""

    config: Config
    data: str
    about: str
    training: dict[str, Any] = field(default_factory=dict)


def _compact(**fields: Any) -> CapsNetConfig:
    return CapsNetConfig(
        backbone="compact", channels=128, primary_types=4, decoder="conv", reconstruction_weight=0.007, **fields
    )


# Found by experiment on validation pairs; docs/log.md has what was tried.
_FAST = {"optimiser": "muon", "lr": 1e-2, "schedule": "linear", "warmup": 0.05}

MODELS: dict[str, Entry] = {
    "capsnet": Entry(CapsNetConfig(), "mnist", "sizes itself to any image and number of classes"),
    "capsnet-mnist": Entry(CapsNetConfig(), "mnist", "the paper's network"),
    "capsnet-multimnist": Entry(
        CapsNetConfig(image=(1, 36, 36), digits=2), "multimnist", "the paper's network for overlapping digits"
    ),
    "capsnet-affnist": Entry(CapsNetConfig(image=(1, 40, 40)), "translated-mnist", "the paper's network on 40x40"),
    "capsnet-cifar10": Entry(
        CapsNetConfig(
            image=(3, 24, 24), primary_types=64, decoder=None, routing_options={"iterations": 3, "leaky": True}
        ),
        "cifar10",
        "24x24 crops, 64 primary types, none of the above",
    ),
    "capsnet-smallnorb": Entry(CapsNetConfig(image=(2, 32, 32), classes=5), "smallnorb", "stereo pairs, 32x32 crops"),
    "capsnet-svhn": Entry(
        CapsNetConfig(image=(3, 32, 32), channels=64, primary_types=16, primary_dim=6, dim=8),
        "svhn",
        "the paper's smaller network",
    ),
    "capsnet-mnist-small": Entry(_compact(), "mnist", "trains in three minutes on a laptop", _FAST),
    "capsnet-multimnist-small": Entry(
        _compact(image=(1, 36, 36), digits=2),
        "multimnist",
        "takes overlapping digits apart after minutes on a laptop",
        _FAST,
    ),
    "cnn-mnist": Entry(CNNConfig(), "mnist", "the paper's baseline"),
    "cnn-multimnist": Entry(
        CNNConfig(image=(1, 36, 36), digits=2, design="multimnist"), "multimnist", "the paper's baseline"
    ),
    "cnn-multimnist-small": Entry(
        CNNConfig(image=(1, 36, 36), digits=2, design="compact"),
        "multimnist",
        "capsnet-multimnist-small without the capsules",
        _FAST,
    ),
    "cnn-affnist": Entry(
        CNNConfig(image=(1, 40, 40), design="affnist"), "translated-mnist", "a CNN as large as capsnet-affnist"
    ),
}


def list_models() -> list[str]:
    return list(MODELS)


def find(name: str) -> Entry:
    if name not in MODELS:
        raise UserError(f"unknown model '{name}'; there are {', '.join(MODELS)}")
    return MODELS[name]


def build(config: Config) -> Model:
    return CapsNet(config) if isinstance(config, CapsNetConfig) else CNN(config)


def configure(name: str, **overrides: Any) -> Config:
    """The named configuration with some fields changed; unknown fields are refused by name."""
    config = find(name).config
    known = {field.name for field in dataclasses.fields(config)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise UserError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return dataclasses.replace(config, **overrides)


def create_model(name: str, pretrained: bool = False, **overrides: Any) -> Model:
    """A model by its name, as in timm: `create_model("capsnet", image=(3, 64, 64), classes=7)`."""
    if pretrained and overrides:
        raise UserError("the pretrained weights belong to the model as it is: leave the other options out")
    model = build(configure(name, **overrides))
    if pretrained:
        from torchcaps.models.pretrained import load_pretrained

        load_pretrained(name, model)
    return model


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
