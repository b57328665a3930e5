"""Writing files completely or not at all, reading them back, and the folder for cached files.

Only `torch` is needed to import this module; writing and reading tensors also needs `safetensors`.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedWriter
from itertools import count
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from torchcaps.core.errors import UserError


def cache_folder() -> Path:
    """The platform's folder for caches, such as `~/.cache/torchcaps`."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(base) / "torchcaps" / "torchcaps" / "Cache"
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "torchcaps"


_numbers = count()


@contextmanager
def written_whole(path: Path, *, mode: int = 0o666, sync: bool = True) -> Iterator[BufferedWriter]:
    """Written to a temporary file, synced, then renamed: whoever looks sees the old file or the new one.

    The folder is synced too. After a power loss the new name is there, and what is removed next was needed no more.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}")
    try:
        with open(os.open(beside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode), "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        beside.replace(path)
        if sync:
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Names reach the disk. Not every system can do this: Windows does it by itself."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def take_lock(file: IO[Any], wait: bool = False) -> bool:
    """Lock an open file for this process; False if another holds it. The lock ends with the process, however it ends.

    Where a system or a file system has no locks, everybody gets one.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # pyright: ignore
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def write_bytes(path: Path, content: bytes) -> None:
    try:
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a run folder: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def packed(tensors: Mapping[str, Tensor]) -> tuple[bytes, str]:
    """The bytes of a safetensors file, and their SHA-256."""
    from safetensors.torch import save

    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return content, hashlib.sha256(content).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Save and return the SHA-256, which the caller keeps elsewhere to detect damage."""
    content, sha256 = packed(tensors)
    write_bytes(path, content)
    return sha256


def read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    from safetensors.torch import load

    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path} is damaged: its SHA-256 is not the one that was recorded")
    return load(content)
