"""torchcaps: capsule networks for PyTorch.

    import torchcaps
    model = torchcaps.create_model("capsnet-mnist-small", pretrained=True)
    output = model(images)            # lengths, capsules, reconstruction, trace
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Resolved on first use, so that `torchcaps --help` does not wait for torch.
_HOMES = {
    "create_model": "torchcaps.models.zoo",
    "list_models": "torchcaps.models.zoo",
    "load_run": "torchcaps.runs",
    "Capsules": "torchcaps.types",
    "DenseCaps": "torchcaps.layers",
    "PrimaryCaps": "torchcaps.layers",
    "RoutingOutput": "torchcaps.types",
    "RoutingTrace": "torchcaps.types",
    "ROUTINGS": "torchcaps.routing",
    "squash": "torchcaps.functional",
    "UserError": "torchcaps.errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
