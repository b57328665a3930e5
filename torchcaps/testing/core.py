"""Building blocks of the checks: the error, and comparisons."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch
from torch import Tensor


class ConformanceError(AssertionError):
    """A property that capsule code must have does not hold; the message says which one, and by how much."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConformanceError(sentence)


def require_close(actual: Tensor, expected: Tensor, sentence: str, tolerance: float = 1e-9) -> None:
    """Equal up to `tolerance`, relative to the largest expected value."""
    require(
        actual.shape == expected.shape,
        f"{sentence}: the shape is {list(actual.shape)} instead of {list(expected.shape)}",
    )
    if actual.numel() == 0:
        return
    expected = expected.detach().double()
    scale = expected.abs().max().item() or 1.0
    error = (actual.detach().double() - expected).abs().max().item() / scale
    require(error <= tolerance, f"{sentence}: off by {error:.3g} of the largest value, allowed is {tolerance:g}")


def require_finite(tensor: Tensor, sentence: str) -> None:
    broken = tensor.numel() - int(tensor.isfinite().sum())
    require(broken == 0, f"{sentence}: {broken} of {tensor.numel()} values are NaN or infinite")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fixed random numbers inside; the random state of the caller is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def must_run(what: str) -> Iterator[None]:
    """Turn an exception of the code under test into a `ConformanceError`."""
    try:
        yield
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(f"{what}: it raised {type(error).__name__}: {error}") from error


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Equal bit for bit, also where both are NaN."""
    return fingerprint(a) == fingerprint(b)


def fingerprint(value: object) -> object:
    """A value that changes if an object does: from the contents of data, else from the identity of the object."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, blake2b(value.detach().cpu().contiguous().numpy().data).digest()
    if isinstance(value, dict):
        return {key: fingerprint(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [fingerprint(item) for item in value]
    if isinstance(value, int | float | str | bytes | None):
        return value
    return id(value)
