"""Capsule layers and losses for networks of your own.

    from torchcaps import nn as caps
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 9), torch.nn.ReLU(),
        caps.PrimaryCaps(32, types=8, dim=8, kernel=5, stride=2),
        caps.ConvCaps(8, 8, parents=8, dim=8, kernel=3),
        caps.DenseCaps(8 * 6 * 6, 8, parents=10, dim=16, routing="dynamic", iterations=3),
    )

Each layer takes the output of the layer before it, or a plain tensor. Only torch, einops and jaxtyping are needed.
"""

from torchcaps.core.functional import squash
from torchcaps.core.types import CapsuleMap, Capsules, RoutingOutput, RoutingTrace
from torchcaps.nn.classes import ClassCaps
from torchcaps.nn.conv import ConvCaps
from torchcaps.nn.dense import DenseCaps
from torchcaps.nn.losses import margin_loss, reconstruction_loss, share_loss, spread_loss
from torchcaps.nn.primary import PrimaryCaps, PrimaryPoses

__all__ = [
    "CapsuleMap", "Capsules", "ClassCaps", "ConvCaps", "DenseCaps", "PrimaryCaps", "PrimaryPoses", "RoutingOutput",
    "RoutingTrace", "margin_loss", "reconstruction_loss", "share_loss", "spread_loss", "squash",
]  # fmt: skip
