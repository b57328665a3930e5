"""torchcaps: capsule networks for PyTorch.

import torchcaps
model = torchcaps.create_model("capsnet-mnist-small", pretrained=True)
output = model(images)            # lengths, capsules, reconstruction, trace
"""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Read by torch when it is first imported. Large buffers come and go in every step, and huge pages spare the kernel most
# of the work of handing them out; the profiler behind the forecast would announce itself on standard error.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

# Resolved on first use, so that `torchcaps --help` does not wait for torch.
_HOMES = {
    "create_model": "torchcaps.models.zoo",
    "list_models": "torchcaps.models.zoo",
    "load_run": "torchcaps.runs",
    "CapsuleMap": "torchcaps.types",
    "Capsules": "torchcaps.types",
    "ClassCaps": "torchcaps.layers",
    "ConvCaps": "torchcaps.layers",
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
