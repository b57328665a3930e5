"""What this user wrote on this machine, told from what came from elsewhere.

A seal is an HMAC with a random key that only this user can read. A file that names folders of this machine, such as the
record of a run, carries one: whoever sends us a run folder cannot make it.
"""

import hmac
import os
import secrets
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from torchcaps.core.errors import UserError
from torchcaps.core.files import cache_folder, make_private, read_regular

KEY_BYTES = 32


def seal(text: str) -> str:
    return hmac.new(_key(cache_folder() / "key"), text.encode(errors="surrogatepass"), "sha256").hexdigest()


def is_sealed(text: str, given: object) -> bool:
    return isinstance(given, str) and hmac.compare_digest(seal(text).encode(), given.encode(errors="replace"))


@lru_cache(maxsize=4)
def _key(path: Path) -> bytes:
    """Made at first use. Where it cannot be kept it is forgotten with the process, and nothing is known again."""
    fresh = secrets.token_bytes(KEY_BYTES)
    with suppress(OSError):
        make_private(path.parent)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(fresh)
    with suppress(OSError, UserError):
        kept = read_regular(path)
        if len(kept) == KEY_BYTES and _is_mine_alone(path):
            return kept
    return fresh


def _is_mine_alone(path: Path) -> bool:
    status = path.stat()
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o077)
