"""A second device for machines that have none: tensors that compute like the processor's and refuse to mix with them.

`Elsewhere` wraps tensors of main memory and says that it is on the device `meta`. An operator that is given tensors of
both kinds fails, as it would with a GPU; scalars may mix, as they may there. Inside `elsewhere()` factories such as
`torch.zeros(..., device="meta")` make tensors with numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

MAKE = torch.tensor
PLACE = torch.device("meta")
INDEXING = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default}
"""These take indices from main memory, on a GPU as well."""


class Elsewhere(Tensor):
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=PLACE
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a tensor of another device to numpy: use .cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    away = any(isinstance(value, Elsewhere) for value in flat)
    device = kwargs.get("device")
    moves = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if away and not moves and func not in INDEXING:
        strangers = [value for value in flat if not isinstance(value, Elsewhere) and value.ndim]
        if strangers:
            raise RuntimeError(f"{func} was given tensors of two devices: {[tuple(s.shape) for s in strangers]}")
    goes_there = away if device is None else torch.device(device) == PLACE
    here = kwargs if device is None else {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = tree_map(_inner, (args, here))
    answer = func(*plain_args, **plain_kwargs)
    if func._schema.is_mutable and args and isinstance(args[0], Tensor) and answer is plain_args[0]:
        return args[0]
    return tree_map(lambda value: Elsewhere(value) if isinstance(value, Tensor) and goes_there else value, answer)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value


class _Factories(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


@contextmanager
def elsewhere(model: nn.Module) -> Iterator[nn.Module]:
    """The model on the other device, and factories that know this device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(Elsewhere(parameter.detach()), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Elsewhere(buffer)
    with _Factories(), patch.object(torch, "tensor", _tensor):
        yield model


def _tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    """`torch.tensor` makes tensors without asking any mode."""
    made = MAKE(data, **options)
    return made if device is None else made.to(device)
