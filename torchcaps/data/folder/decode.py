"""Decode many picture files into one file of small pictures, which is then memory-mapped.

Memory stays bounded whatever the number of files: each thread holds the one picture that it decodes (a large JPEG at a
fraction of its size, anything else at most `MOST_PIXELS`), and finished rows are written every `BUFFER` bytes.
"""

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8

from torchcaps.core.errors import UserError
from torchcaps.core.files import written_whole
from torchcaps.core.progress import Progress
from torchcaps.data.readers.pictures import read_bytes

BUFFER = 16 * 2**20
T = TypeVar("T")


def threads() -> int:
    """Decoders release Python's lock, so that threads are enough."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def decoded(
    paths: Iterable[str | Path], image: tuple[int, int, int], handwritten: bool = False, ahead: int | None = None
) -> Iterator[UInt8[np.ndarray, "c h w"] | UserError]:
    """The pictures of `paths` in their order, or why one cannot be read; at most `ahead` of them are held at a time."""
    ahead = ahead or max(2 * threads(), min(512, BUFFER // (image[0] * image[1] * image[2])))
    return in_threads(partial(_attempt, image=image, handwritten=handwritten), paths, ahead)


def in_threads(look: Callable[[str | Path], T], paths: Iterable[str | Path], ahead: int) -> Iterator[T]:
    """`look` at each path, results in order."""
    left = iter(paths)
    # Set once for all threads, since the filters belong to the process: decoders warn about what is then read anyway.
    with warnings.catch_warnings(), ThreadPoolExecutor(threads()) as pool:
        warnings.simplefilter("ignore")
        while chunk := list(islice(left, ahead)):
            yield from pool.map(look, chunk)


def _attempt(
    path: str | Path, image: tuple[int, int, int], handwritten: bool
) -> UInt8[np.ndarray, "c h w"] | UserError:
    try:
        return read_bytes(path, image, handwritten)
    except UserError as error:
        return error
    except Exception as error:
        # A picture with an unexpected error is left out, like one that cannot be read.
        return UserError(f"{path} cannot be made an image of {image}: {' '.join(str(error).split())}")


@dataclass
class Decoded:
    """What became of a list of files: the rows that were written, and the files that could not be read."""

    kept: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    sha256: str = ""


def write_decoded(
    paths: Sequence[str | Path], image: tuple[int, int, int], out: Path, bar: Progress, allowed: int
) -> Decoded:
    """All that can be read, one after the other into the file `out`; stops at more than `allowed` unreadable files."""
    result, whole = Decoded(), hashlib.sha256()
    with written_whole(out) as file:
        for index, row in enumerate(decoded(paths, image)):
            bar.update(1)
            if isinstance(row, UserError):
                result.unreadable[index] = str(row)
                if len(result.unreadable) > allowed:
                    break
                continue
            content = row.tobytes()
            file.write(content)
            whole.update(content)
            result.kept.append(index)
            result.digests.append(hashlib.blake2b(content, digest_size=12).digest())
    result.sha256 = whole.hexdigest()
    return result


def map_decoded(path: Path, count: int, image: tuple[int, int, int]) -> UInt8[np.ndarray, "n c h w"]:
    """The pictures of a file, in memory only where they are looked at; writing to them does not reach the file."""
    if not count:
        return np.zeros((0, *image), np.uint8)
    return np.memmap(path, np.uint8, "c", shape=(count, *image))
