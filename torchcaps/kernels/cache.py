"""The user's cache folder: what is kept there is private, whole and verified.

Libraries are executed, so a file is only taken if it and its folder belong to this user and nobody else may write to
them, and if its bytes are those that were stored: the SHA-256 is part of its name.
"""

import hashlib
import json
import os
import stat
import time
from pathlib import Path

from torchcaps.core.files import written_whole

FAILURE_SECONDS = 7 * 24 * 3600
"""How long a failed attempt to compile is remembered."""


def private_folder(path: Path) -> Path:
    """Makes the folder, for this user alone; PermissionError if it is another user's or cannot be made private.

    Nor may it lie in a folder where everybody can put another one in its place.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.lstat()
    open_to_all = [
        above for above in path.parents if above.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    ]
    if open_to_all:
        raise PermissionError(f"everybody may write to {open_to_all[0]}")
    if not stat.S_ISDIR(found.st_mode) or not _is_mine(found):
        raise PermissionError(f"{path} belongs to another user or is a link")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def write_whole(path: Path, content: bytes, sync: bool = True) -> None:
    """For this user alone; `sync` makes it survive a power loss too."""
    with written_whole(path, mode=0o600, sync=sync) as file:
        file.write(content)


def find_library(folder: Path, stem: str) -> Path | None:
    """The stored library of that name. What is damaged or not safe to load is removed where possible, never loaded."""
    for path in sorted(folder.glob(f"{stem}-*.so")):
        found = path.lstat()
        safe = stat.S_ISREG(found.st_mode) and _is_mine(found) and not found.st_mode & 0o022
        if safe and path.name == _name(stem, path.read_bytes()):
            return path
        path.unlink(missing_ok=True)
    return None


def store_library(folder: Path, stem: str, built: Path) -> Path:
    content = built.read_bytes()
    path = folder / _name(stem, content)
    write_whole(path, content)
    return path


def remember_failure(folder: Path, stem: str, reason: str) -> None:
    record = {"reason": reason, "seconds": time.time()}
    write_whole(folder / f"{stem}.failed.json", json.dumps(record).encode())


def known_failure(folder: Path, stem: str) -> str | None:
    """Why compiling this failed, if that was tried lately."""
    try:
        record = json.loads((folder / f"{stem}.failed.json").read_bytes())
        return record["reason"] if 0 <= time.time() - record["seconds"] < FAILURE_SECONDS else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name(stem: str, content: bytes) -> str:
    return f"{stem}-{hashlib.sha256(content).hexdigest()}.so"


def _is_mine(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
