"""Data sets by name: fetched, verified, kept, and read as arrays.

The bytes of every source are verified before they are used. Files are in `cache_dir()`, written completely or not at
all. A small file next to each one (`NAME.sha256`: hash, size, time of change) avoids hashing it again until it
changes. Where no hash is published, the hash of the first file that could be read is used from then on.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.core.files import cache_folder, make_private, written_whole
from torchcaps.core.progress import Progress, say
from torchcaps.data.readers import affnist, cifar, idx, norb, svhn
from torchcaps.data.sources.catalogue import FILES, SETS, FileSpec, Source
from torchcaps.data.sources.clients import SourceError

Split = Literal["train", "test"]
PARTIAL = ".partial-"
_offline: ContextVar[bool] = ContextVar("offline", default=False)


def cache_dir() -> Path:
    """The folder of the data sets: TORCHCAPS_DATA, else the platform's folder for caches."""
    if chosen := os.environ.get("TORCHCAPS_DATA"):
        return Path(chosen).expanduser().resolve()
    return cache_folder()


@contextmanager
def offline() -> Iterator[None]:
    """Inside this context nothing is downloaded: a missing file is an error."""
    before = _offline.set(True)
    try:
        yield
    finally:
        _offline.reset(before)


def fetch(key: str) -> Path:
    """The verified file behind `key` (such as "mnist/train-images"), fetched first if it is missing or damaged."""
    if key not in FILES:
        raise UserError(f"there is no file {key!r}: the files of a data set are {', '.join(FILES)}")
    spec, path = FILES[key], _path(FILES[key])
    if spec.bundled or _trusted(spec):
        return path
    if _offline.get():
        raise UserError(f"{key} is not on this machine: bring it with 'torchcaps data fetch {key.partition('/')[0]}'")
    import filelock

    try:
        make_private(cache_dir(), existing="TORCHCAPS_DATA" not in os.environ)
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(cache_dir() / ".lock"):
            if not _trusted(spec):  # another process may have fetched it while this one waited
                _remove_leftovers()
                _bring(key)
    except OSError as error:
        raise UserError(f"cannot keep {key} in {cache_dir()}: {error.strerror or error}") from error
    return path


def hashes(name: str) -> dict[str, str]:
    """SHA-256 of each file of a set; one that was published without a hash is there once it has been fetched."""
    recorded = {key: FILES[key].sha256 or _recorded(_path(FILES[key])).get("sha256") for key in _keys(name)}
    return {key: value for key, value in recorded.items() if value}


def have(name: str, split: Split) -> bool:
    """Whether the files of a split are on this machine."""
    return all(_path(FILES[key]).exists() for key in _keys(name) if f"/{split}" in key)


def load_arrays(name: str, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Images, uint8 [n c h w], and labels, int64 [n], of one split; fetched if need be."""
    _keys(name)
    match name:
        case "cifar10":
            images, labels = cifar.read(fetch(f"{name}/{split}-images"), fetch(f"{name}/{split}-labels"))
        case "smallnorb" | "norb-style":
            images, labels = norb.read_pairs(fetch(f"{name}/{split}-dat"), fetch(f"{name}/{split}-cat"))
        case "svhn" | "svhn-rebuilt":
            images, labels = svhn.read(fetch(f"{name}/{split}"))
        case "affnist":
            images, labels = affnist.read(fetch(f"{name}/{split}"))
        case "faces" | "ships":
            from torchcaps.data.synthetic import faces, ships  # drawn with torch, which nothing else here needs

            images, labels = (faces if name == "faces" else ships).arrays(split)
        case _:
            images = idx.read(fetch(f"{name}/{split}-images"))[:, None]
            labels = idx.read(fetch(f"{name}/{split}-labels")).astype(np.int64)
    if len(images) != len(labels):
        raise UserError(f"{name} {split} has {len(images)} images but {len(labels)} labels: fetch it anew")
    return images, labels


def _keys(name: str) -> tuple[str, ...]:
    if name not in SETS:
        raise UserError(f"there is no data set {name!r}: use one of {', '.join(SETS)}")
    return SETS[name]


def _path(spec: FileSpec) -> Path:
    return (Path(__file__).parents[1] if spec.bundled else cache_dir()) / spec.place


def _bring(key: str) -> None:
    """Try the sources of `key` in order; an archive that also serves other files still missing is used for them too."""
    problems = []
    for source in FILES[key].sources:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=cache_dir(), ignore_cleanup_errors=True) as folder:
                with Progress(f"fetching {key} from {source.archive}") as progress:
                    source.archive.collect(Path(folder), progress)
                    _install(FILES[key], source, Path(folder))
                others = _install_others(source, Path(folder))
        except Exception as error:  # whatever broke this source, the next one may serve
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise
            problems.append(f"{source.archive} ({_one_line(error)})")
            say(f"  {problems[-1]}")
            continue
        found = f"{key} and {others} more" if others else key
        say(f"  {found} in {time.monotonic() - began:.1f} s")
        return
    raise UserError(_all_failed(key, problems))


def _install_others(source: Source, folder: Path) -> int:
    count = 0
    for other in FILES.values():
        for same in other.sources:
            if same.archive == source.archive and not _trusted(other):
                try:
                    _install(other, same, folder)
                    count += 1
                except Exception:  # it was not asked for: its own turn will say what is wrong
                    continue
    return count


def _install(spec: FileSpec, source: Source, folder: Path) -> None:
    """Decode into a temporary file, verify, sync, then rename it."""
    path, fresh = _path(spec), folder / ".verified"
    digest, size = hashlib.sha256(), 0
    with fresh.open("wb") as file:
        for block in source.decode(folder):
            size += len(block)
            if size > (spec.size or spec.most):
                raise SourceError(f"longer than the {spec.size or spec.most} bytes of {spec.place}")
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    expected = spec.sha256 or _recorded(path).get("sha256")
    if expected not in (None, digest.hexdigest()):
        raise SourceError(f"sha256 {digest.hexdigest()[:12]} instead of {expected[:12]}")
    if expected is None and spec.check:
        spec.check(fresh)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh.replace(path)
    _record(path, digest.hexdigest())


def _trusted(spec: FileSpec) -> bool:
    """Whether the cached file is the verified one: by its marker if that fits, else by hashing it."""
    path = _path(spec)
    if not path.is_file():
        return False
    status, record = path.stat(), _recorded(path)
    expected = spec.sha256 or record.get("sha256")
    if record == {"sha256": expected, "size": status.st_size, "mtime_ns": status.st_mtime_ns}:
        return True
    if spec.size not in (None, status.st_size) or status.st_size > (spec.size or spec.most):
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if expected is None and spec.check:
        try:
            spec.check(path)
        except UserError:
            return False
        expected = digest
    if digest != expected:
        return False
    _record(path, digest)
    return True


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _recorded(path: Path) -> dict:
    try:
        record = json.loads(_marker(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _record(path: Path, digest: str) -> None:
    status = path.stat()
    record = {"sha256": digest, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    try:
        with written_whole(_marker(path)) as file:
            file.write(json.dumps(record).encode())
    except OSError:  # a cache that others own: the file is hashed again next time
        pass


def _remove_leftovers() -> None:
    """Remove the temporary folders of killed processes; the caller holds the lock, so no other process uses them."""
    for folder in cache_dir().glob(f"{PARTIAL}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _all_failed(key: str, problems: list[str]) -> str:
    spec, path = FILES[key], _path(FILES[key])
    hint = f"with sha256 {spec.sha256[:12]}..." if spec.sha256 else "as its publisher has it, uncompressed"
    found = " (the file there now is not it)" if path.exists() else ""
    if not problems:
        return f"nothing brings {key}: put it at {path} yourself{found}"
    return f"could not fetch {key}, tried {', '.join(problems)}: to supply it by hand, put it at {path} {hint}{found}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
