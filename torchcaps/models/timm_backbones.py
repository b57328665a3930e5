"""Networks of timm under the capsules, by name.

    create_model("capsnet", backbone="timm:resnet18", image=(3, 128, 128), classes=5)

begins with the weights that timm has for it and trains them on. `timm:resnet18:frozen` leaves them as they are,
`timm:resnet18:random` begins without them. The name is saved with the model and so are the weights: loading it needs
timm, but fetches nothing.
"""

import re
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.progress import say
from torchcaps.models.backbones import BACKBONES, ForeignBackbone

# Neither a colon nor a slash is part of a name: timm would take what follows for an address or a folder.
SPECIFIED = re.compile(r"timm:(?P<name>[\w.-]+)(?P<options>(:frozen|:random)*)")


class TimmBackbone(nn.Module):
    """The last feature map of a network of timm, which sees pixels as it was trained to see them."""

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, image: tuple[int, int, int], pretrained: bool) -> None:
        super().__init__()
        timm = _timm(name)
        channels, *size = image
        if pretrained:
            say(f"{name}: weights from timm, which fetches them if they are not here")
        try:
            known = timm.get_pretrained_cfg(name)
            fixed = {"img_size": tuple(size)} if known is not None and known.fixed_input_size else {}
            self.network = timm.create_model(
                name, pretrained=pretrained, features_only=True, in_chans=channels, **fixed
            )
        except Exception as error:  # unknown names, no connection, networks without feature maps: each has its own
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"timm does not give {name}: {why}") from None
        # Some, such as Swin, have the channels of a map last.
        layout = getattr(self.network, "output_fmt", "NCHW")
        self.channels_last = getattr(layout, "value", layout) == "NHWC"
        for part in ("mean", "std"):
            values = torch.tensor(getattr(known, part) if known is not None else (0.5, 0.5, 0.5))
            values = values if channels == len(values) else values.mean().expand(channels)
            self.register_buffer(part, values.reshape(-1, 1, 1).clone())

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b o y x"]:
        features = self.network((images - self.mean) / self.std)[-1]
        return features.permute(0, 3, 1, 2) if self.channels_last else features


def is_of_timm(backbone: Any) -> bool:
    """By its name."""
    return isinstance(backbone, str) and backbone.startswith("timm:")


def offer(backbone: Any, pretrained: bool) -> None:
    """Put a network of timm into the table of backbones, where models look for it by its name.

    `pretrained` is False where weights will be loaded anyway.
    """
    if not is_of_timm(backbone):
        return
    found = SPECIFIED.fullmatch(backbone)
    if found is None:
        raise UserError(f"a backbone of timm is timm:NAME, timm:NAME:frozen or timm:NAME:random, not {backbone!r}")
    options = found["options"].split(":")
    BACKBONES[backbone] = partial(
        _make, found["name"], pretrained=pretrained and "random" not in options, frozen="frozen" in options
    )


def _make(name: str, image: tuple[int, int, int], channels: int, *, pretrained: bool, frozen: bool) -> ForeignBackbone:
    """Its number of channels is its own."""
    return ForeignBackbone(TimmBackbone(name, image, pretrained).requires_grad_(not frozen), image)


def _timm(name: str) -> Any:
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"the backbone timm:{name} needs timm: pip install 'torchcaps[timm]'") from None
    except Exception as error:  # a torchvision that was built for another torch
        why = (str(error).splitlines() or [type(error).__name__])[0]
        fitting = f"install the torchvision that fits torch {torch.__version__}"
        raise UserError(f"the backbone timm:{name} needs timm, which cannot be imported: {why}; {fitting}") from None
    return timm
