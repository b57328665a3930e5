"""Writing files completely or not at all, reading them back, and the folder for cached files.

Only `torch` is needed to import this module; writing and reading tensors also needs `safetensors`.
"""

import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from itertools import count
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import IO, Any, Literal, Union, get_args, get_origin

from torch import Tensor

from torchcaps.core.errors import UserError


def cache_folder() -> Path:
    """The platform's folder for caches, such as `~/.cache/torchcaps`."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(base) / "torchcaps" / "torchcaps" / "Cache"
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "torchcaps"


def make_private(folder: Path, existing: bool = True) -> None:
    """A folder that only this user may look into; one that exists already is changed only if it is ours."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if existing and hasattr(os, "getuid") and status.st_uid == os.getuid() and status.st_mode & 0o077:
        folder.chmod(0o700)


def open_regular(path: str | Path) -> BufferedReader:
    """A regular file, opened for reading. A pipe, socket or device is refused at once: reading it might never end."""
    if stat.S_ISREG(os.stat(path).st_mode):
        # What the name stands for may have changed meanwhile: do not wait for the other end of a pipe.
        file = os.fdopen(os.open(path, os.O_RDONLY | _AT_ONCE), "rb")
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
    raise UserError(f"{path} is not a regular file")


def read_regular(path: str | Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_numbers = count()


@contextmanager
def written_whole(path: Path, *, mode: int = 0o666, sync: bool = True) -> Iterator[BufferedWriter]:
    """Written to a temporary file, synced, then renamed: whoever looks sees the old file or the new one.

    The folder is synced too. After a power loss the new name is there, and what is removed next was needed no more.
    """
    _make_folder(path.parent, sync)
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


def _make_folder(folder: Path, sync: bool) -> None:
    """The name of a new folder has to reach the disk too."""
    if folder.is_dir():
        return
    _make_folder(folder.parent, sync)
    folder.mkdir(exist_ok=True)
    if sync:
        _sync_folder(folder.parent)


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
        return json.loads(read_regular(path))
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a run folder: it has no {path.name}") from None
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0][:200]}") from None


Kinds = Mapping[str, type]


def read_record(path: Path, needed: Kinds = MappingProxyType({}), also: Kinds = MappingProxyType({})) -> dict[str, Any]:
    """A JSON object with fields of these kinds, those of `also` only if they are there."""
    record = read_json(path)
    if not isinstance(record, dict):
        raise UserError(f"{path} is damaged: it is not a JSON object")
    for name, kind in {**also, **needed}.items():
        if name not in record and name in needed:
            raise UserError(f"{path} is damaged: it has no '{name}'")
        if name in record and not is_kind(record[name], kind) and not (name in also and record[name] is None):
            raise UserError(f"{path} is damaged: '{name}' is {str(record[name])[:60]!r}")
    return record


def is_kind(value: Any, kind: type) -> bool:
    """A whole number is a float too, a float has to be finite, and True is not a number."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def is_as_annotated(value: Any, hint: Any) -> bool:
    """Whether a value from a file is what an annotation says. Annotations that JSON cannot hold are not looked at.

    >>> is_as_annotated([1, 28, True], tuple[int, int, int]), is_as_annotated(None, int | None)
    (False, True)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(is_as_annotated(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple and isinstance(value, tuple | list):
        kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else parts
        return len(kinds) == len(value) and all(map(is_as_annotated, value, kinds))
    if origin in (dict, tuple):
        return isinstance(value, origin)
    if hint is NoneType:
        return value is None
    return is_kind(value, hint) if hint in (bool, int, float, str) else True


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


def read_tensors(path: Path, sha256: str | None) -> dict[str, Tensor]:
    """The tensors of a file, whose bytes are verified first; None where no hash was recorded."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        content = read_regular(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path} is damaged: its SHA-256 is not the one that was recorded")
    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path} is not a safetensors file: {str(error).splitlines()[0][:200]}") from None
