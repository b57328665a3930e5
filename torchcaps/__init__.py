"""torchcaps: capsule networks for PyTorch.

import torchcaps
model = torchcaps.create_model("capsnet-mnist-small", pretrained=True)
output = model(images)            # lengths, capsules, reconstruction, trace
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcaps.core.errors import UserError
    from torchcaps.core.functional import squash
    from torchcaps.core.types import CapsuleMap, Capsules, ModelOutput, RoutingOutput, RoutingTrace
    from torchcaps.data.named import register_data
    from torchcaps.models.registry import create_model, list_models, register_model
    from torchcaps.nn import ClassCaps, ConvCaps, DenseCaps, PrimaryCaps, PrimaryPoses
    from torchcaps.routing import ROUTINGS, register_routing
    from torchcaps.training.fit import fit
    from torchcaps.training.runs import load_run

__version__ = "0.2.0"

# Read by torch when it is first imported. Large buffers come and go in every step, and huge pages spare the kernel most
# of the work of handing them out; the profiler behind the forecast would announce itself on standard error.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

# Resolved on first use, so that `torchcaps --help` does not wait for torch.
_NAMES = {
    "core.errors": ("UserError",),
    "core.functional": ("squash",),
    "core.types": ("CapsuleMap", "Capsules", "ModelOutput", "RoutingOutput", "RoutingTrace"),
    "data.named": ("register_data",),
    "models.registry": ("create_model", "list_models", "register_model"),
    "nn": ("ClassCaps", "ConvCaps", "DenseCaps", "PrimaryCaps", "PrimaryPoses"),
    "routing": ("ROUTINGS", "register_routing"),
    "training.fit": ("fit",),
    "training.runs": ("load_run",),
}
_HOMES = {name: f"torchcaps.{home}" for home, names in _NAMES.items() for name in names}
_ROOMS = (
    "core", "routing", "kernels", "nn", "data", "models", "training", "analysis", "viz", "experiments", "testing",
    "app",
)  # fmt: skip

__all__ = [
    "ROUTINGS", "CapsuleMap", "Capsules", "ClassCaps", "ConvCaps", "DenseCaps", "ModelOutput", "PrimaryCaps",
    "PrimaryPoses", "RoutingOutput", "RoutingTrace", "UserError", "__version__", "create_model", "fit", "list_models",
    "load_run", "register_data", "register_model", "register_routing", "squash",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"torchcaps.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS]
