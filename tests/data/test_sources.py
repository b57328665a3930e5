"""Fetching: from servers on this machine that behave well and badly, and with stand-ins for the registries' clients."""

import errno
import gzip
import hashlib
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from torchcaps.core.errors import UserError
from torchcaps.data import sources
from torchcaps.data.readers import norb
from torchcaps.data.sources import clients
from torchcaps.data.sources.catalogue import FILES, RUNTIME, SETS, FileSpec, Source, member
from torchcaps.data.sources.clients import Debian, Npm, Pypi, Web

CONTENT = bytes(range(256)) * 400
SHA = hashlib.sha256(CONTENT).hexdigest()
PACKED = gzip.compress(CONTENT, mtime=0)
KEY = "test/file"
PATIENCE = (clients.CONNECT_SECONDS, clients.STALL_SECONDS)


class Server(ThreadingHTTPServer):
    """Serves `pages`; the page "/hangs" accepts and never answers, "/halts" sends half of a file and then nothing."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages = {
            "/good.gz": PACKED,
            "/plain.gz": CONTENT,
            "/corrupted.gz": PACKED[:200] + b"?" + PACKED[201:],
            "/cut.gz": PACKED[: len(PACKED) // 2],
            "/other.gz": gzip.compress(CONTENT[::-1]),
            "/long.gz": gzip.compress(CONTENT * 2),
        }
        self.asked: list[str] = []
        self.states_length, self.sent = True, 0
        self.released = threading.Event()

    def url(self, page: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{page}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/hangs.gz":
            self.server.released.wait()
        content = self.server.pages.get(self.path, PACKED)
        self.send_response(404 if self.path == "/missing.gz" else 200)
        if self.server.states_length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.path in ("/halts.gz", "/breaks.gz"):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if self.path == "/halts.gz":
                self.server.released.wait()
            return
        with suppress(ConnectionError):
            for start in range(0, len(content), 1 << 16):
                self.server.sent += self.wfile.write(content[start : start + (1 << 16)])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[], Server]]:
    running: list[Server] = []

    def start() -> Server:
        running.append(Server())
        threading.Thread(target=partial(running[-1].serve_forever, poll_interval=0.01), daemon=True).start()
        return running[-1]

    yield start
    for server in running:
        server.released.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder and no memory of dead hosts."""
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(clients, "_unreachable", set())
    return tmp_path / "cache"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience that fits a test in which somebody is silent. The others have the usual: a busy machine is slow."""
    monkeypatch.setattr(clients, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(clients, "CLIENT_STALL_SECONDS", 1.0)


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a file with these sources into the table."""

    def put(*archives: clients.Archive, key: str = KEY, name: str | None = None, **changes: object) -> None:
        places = [Source(archive, partial(member, name=name or _name(archive))) for archive in archives]
        spec = {"place": key, "sha256": SHA, "sources": tuple(places), "size": len(CONTENT)} | changes
        monkeypatch.setitem(FILES, key, FileSpec(**spec))

    return put


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Shell scripts that are the only programs on PATH; each writes a line to `calls` when it is run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(name: str, script: str) -> Path:
        (folder / name).write_text(f'#!/bin/sh\necho "$0 $*" >> "{folder}/calls"\nPATH=/usr/bin:/bin\n{script}\n')
        (folder / name).chmod(0o755)
        return folder / "calls"

    return write


def _name(archive: clients.Archive) -> str:
    return archive.url.rpartition("/")[2] if isinstance(archive, Web) else "file"


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def npm_package(folder: Path, **contents: bytes) -> Path:
    tree = folder / "package"
    tree.mkdir()
    for name, content in contents.items():
        (tree / name).write_bytes(content)
    with tarfile.open(folder / "thing.tgz", "w:gz") as tar:
        tar.add(tree, "package")
    return folder / "thing.tgz"


# the web


@pytest.mark.parametrize("page", ["good.gz", "plain.gz"])
def test_a_file_is_fetched_once_and_kept(serve, offer, cache, page, capfd):
    """A server may also have unpacked the .gz on its way (Content-Encoding)."""
    server = serve()
    offer(Web(server.url(page)))
    assert sources.fetch(KEY) == cache / KEY
    assert sources.fetch(KEY).read_bytes() == CONTENT
    assert server.asked == [f"/{page}"]
    assert files_in(cache) == [".lock", KEY, f"{KEY}.sha256"]
    out, err = capfd.readouterr()
    assert out == ""
    assert f"fetching {KEY} from 127.0.0.1" in err


@pytest.mark.alone
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("page", ["missing", "corrupted", "cut", "other", "long", "breaks", "halts", "hangs"])
def test_a_bad_server_is_passed_over_within_seconds(serve, offer, cache, page):
    bad, good = serve(), serve()
    offer(Web(bad.url(f"{page}.gz")), Web(good.url("good.gz")))
    began = time.monotonic()
    assert sources.fetch(KEY).read_bytes() == CONTENT
    assert time.monotonic() - began < 4
    assert bad.asked == [f"/{page}.gz"]
    assert files_in(cache) == [".lock", KEY, f"{KEY}.sha256"]


def test_an_archive_that_unpacks_to_too_much_is_stopped_early(serve, offer):
    offer(Web(serve().url("long.gz")))
    with pytest.raises(UserError, match=f"longer than the {len(CONTENT)} bytes"):
        sources.fetch(KEY)


@pytest.mark.parametrize("stated", [True, False])
def test_a_download_that_never_ends_is_stopped_while_it_arrives(serve, offer, cache, stated):
    server = serve()
    server.pages["/endless.gz"], server.pages["/good.gz"] = bytes(32 << 20), PACKED
    server.states_length = stated
    offer(Web(server.url("endless.gz"), most=1 << 20), Web(server.url("good.gz")), name="good.gz")
    assert sources.fetch(KEY).read_bytes() == CONTENT
    assert server.sent < 16 << 20, "all of it was fetched"


def test_a_client_that_fetches_too_much_is_stopped(offer, programs, serve, monkeypatch):
    monkeypatch.setattr(clients, "MOST_FETCHED", 1 << 20)
    programs("npm", "while :; do head -c 1000000 /dev/zero >> big; sleep 0.01; done")
    offer(Npm("thing@1"), Web(serve().url("good.gz")), name="good.gz")
    assert sources.fetch(KEY).read_bytes() == CONTENT


def test_the_real_patience_is_seconds_as_well():
    assert max(PATIENCE) <= 10


@pytest.mark.usefixtures("hasty")
def test_a_dead_host_is_asked_once_in_a_process(serve, offer):
    dead, good = serve(), serve()
    for number in range(3):
        offer(Web(dead.url("hangs.gz")), Web(good.url("good.gz")), key=f"test/{number}")
        sources.fetch(f"test/{number}")
    assert dead.asked == ["/hangs.gz"]


def test_a_missing_page_does_not_condemn_its_host(serve, offer):
    server = serve()
    offer(Web(server.url("missing.gz")), Web(server.url("good.gz")))
    assert sources.fetch(KEY).read_bytes() == CONTENT


@pytest.mark.alone
def test_a_name_that_never_resolves_costs_the_connection_timeout(offer, monkeypatch):
    """Looking up a name cannot be given a timeout; here it stands still for as long as the test takes."""
    over = threading.Event()

    def stuck(*_: object) -> None:
        over.wait()
        raise OSError

    monkeypatch.setattr(clients, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(clients.socket, "create_connection", stuck)
    offer(Web("http://nowhere.invalid/file.gz"))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"nowhere\.invalid \(unreachable\)"):
        sources.fetch(KEY)
    assert time.monotonic() - began < 2
    over.set()


@pytest.mark.alone
def test_when_all_fail_one_line_says_what_to_do(serve, offer, programs, cache):
    server = serve()
    refused = "http://127.0.0.1:1/x.gz"
    offer(Web(refused), Web(server.url("missing.gz")), Npm("thing@1"), Debian("thing"))
    began = time.monotonic()
    with pytest.raises(UserError) as caught:
        sources.fetch(KEY)
    assert time.monotonic() - began < 2
    line = str(caught.value)
    assert "\n" not in line
    for part in ("unreachable", "404", "npm thing@1 (npm is not installed)", "apt-get", str(cache / KEY), SHA[:12]):
        assert part in line
    assert files_in(cache) == [".lock"]


def test_tar_and_zip_are_unpacked_flat(serve, offer, tmp_path):
    """A member that points out of the archive lands inside all the same."""
    server = serve()
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        (tmp_path / "raw").write_bytes(CONTENT)
        tar.add(tmp_path / "raw", "../../escaped")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("deep/er/1.mat", CONTENT)
    for archive, name in (("a.tar.gz", "escaped"), ("a.zip", "1.mat")):
        server.pages[f"/{archive}"] = (tmp_path / archive).read_bytes()
        offer(Web(server.url(archive)), key=f"test/{name}", name=name)
        assert sources.fetch(f"test/{name}").read_bytes() == CONTENT


def test_an_archive_with_a_hash_is_verified_before_it_is_unpacked(serve, offer, monkeypatch):
    monkeypatch.setattr(clients, "_unpack", lambda *_: pytest.fail("it is unpacked"))
    offer(Web(serve().url("a.tar.gz"), "0" * 64))
    with pytest.raises(UserError, match=r"sha256 \w+ instead of 000000000000"):
        sources.fetch(KEY)


# package clients


def test_one_package_serves_all_its_files(offer, programs, tmp_path, cache):
    package = npm_package(tmp_path, one=CONTENT, two=PACKED, three=b"damaged")
    calls = programs("npm", f'cp "{package}" . ; echo thing.tgz')
    for name in ("one", "two", "three"):
        offer(Npm("thing@1.0.0"), key=f"test/{name}", name=name)
    assert sources.fetch("test/one").read_bytes() == CONTENT
    assert sources.fetch("test/two").read_bytes() == CONTENT
    assert len(calls.read_text().splitlines()) == 1
    assert " pack thing@1.0.0 " in calls.read_text()
    with pytest.raises(UserError, match="could not fetch test/three"):
        sources.fetch("test/three")
    assert "test/three" not in files_in(cache)


@pytest.mark.alone
def test_a_client_that_errs_is_quoted_and_passed_over(offer, programs, serve):
    programs("npm", 'echo "npm warn old"; echo "npm error code E404" >&2; echo "npm error a log is somewhere"; exit 1')
    offer(Npm("thing@1"))
    began = time.monotonic()
    with pytest.raises(UserError, match=r"npm thing@1 \(npm error code E404\)"):
        sources.fetch(KEY)
    assert time.monotonic() - began < 2
    offer(Npm("thing@1"), Web(serve().url("good.gz")), name="good.gz")
    assert sources.fetch(KEY).read_bytes() == CONTENT


def alive(status: Path) -> bool:
    try:
        return "zombie" not in status.read_text()
    except OSError:
        return False


@pytest.mark.alone
@pytest.mark.usefixtures("hasty")
def test_a_client_that_hangs_is_stopped_with_its_children(offer, programs, tmp_path):
    programs("npm", f'sleep 60 & echo $! > "{tmp_path}/child"; wait')
    offer(Npm("thing@1"))
    began = time.monotonic()
    with pytest.raises(UserError, match="no end after"):
        sources.fetch(KEY)
    assert time.monotonic() - began < 3
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/status")
    # On a busy machine a signal takes a moment to arrive.
    assert any(time.sleep(0.05 * tries) or not alive(child) for tries in range(20))


@pytest.mark.alone
@pytest.mark.usefixtures("hasty")
def test_a_slow_client_may_take_its_time_while_bytes_arrive(offer, programs, tmp_path):
    package = npm_package(tmp_path, file=CONTENT)
    programs("npm", f'for i in 1 2 3 4 5 6; do echo more >> growing; sleep 0.2; done; cp "{package}" .')
    offer(Npm("thing@1"))
    assert sources.fetch(KEY).read_bytes() == CONTENT


def test_pip_downloads_a_wheel(offer, tmp_path, monkeypatch):
    """The real client, and a folder in place of an index."""
    about = "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\nRequires-Dist: absent\nRequires-Python: <3\n"
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing/data/file", CONTENT)
        wheel.writestr("thing-1.0.dist-info/METADATA", about)
        wheel.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("thing-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    offer(Pypi("thing==1.0"))
    assert sources.fetch(KEY).read_bytes() == CONTENT


@pytest.mark.skipif(not Path("/usr/bin/dpkg-deb").exists(), reason="needs dpkg-deb")
def test_a_debian_package_is_taken_apart(offer, programs, tmp_path, monkeypatch):
    """The real dpkg-deb, and a stand-in for the download."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/bin:/bin")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: thing\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n"
    )
    (tree / "usr/share").mkdir(parents=True)
    (tree / "usr/share/file").write_bytes(PACKED)
    subprocess.run(["dpkg-deb", "-b", tree, tmp_path / "thing_1_all.deb"], check=True, capture_output=True)
    calls = programs("apt-get", f'cp "{tmp_path}/thing_1_all.deb" .')
    offer(Debian("thing"))
    assert sources.fetch(KEY).read_bytes() == CONTENT
    assert "download" in calls.read_text()


# what is in the cache


def test_an_intact_file_is_not_hashed_again(serve, offer, monkeypatch):
    offer(Web(serve().url("good.gz")))
    sources.fetch(KEY)
    monkeypatch.setattr(sources.hashlib, "file_digest", None)
    assert sources.fetch(KEY).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", [CONTENT[:-1] + b"?", CONTENT[:100], b""])
def test_damage_in_the_cache_is_noticed_and_mended(serve, offer, damage):
    server = serve()
    offer(Web(server.url("good.gz")))
    sources.fetch(KEY).write_bytes(damage)
    os.utime(sources.cache_dir() / KEY, (0, 0))  # clocks of file systems stand still for some milliseconds
    assert sources.fetch(KEY).read_bytes() == CONTENT
    assert len(server.asked) == 2


@pytest.mark.parametrize("marker", [None, b"", b"[1]", b'{"sha256": "0"}', b"\xff"])
def test_a_file_without_its_marker_is_hashed_not_fetched(offer, cache, marker):
    offer()
    (cache / "test").mkdir(parents=True)
    (cache / KEY).write_bytes(CONTENT)
    if marker is not None:
        (cache / f"{KEY}.sha256").write_bytes(marker)
    assert sources.fetch(KEY) == cache / KEY
    assert SHA.encode() in (cache / f"{KEY}.sha256").read_bytes()


def test_a_wrong_file_put_there_by_hand_is_named_and_left_alone(offer, cache):
    offer()
    (cache / "test").mkdir(parents=True)
    (cache / KEY).write_bytes(b"mistaken")
    with pytest.raises(UserError, match="the file there now is not it"):
        sources.fetch(KEY)
    assert (cache / KEY).read_bytes() == b"mistaken"


def test_a_file_without_a_published_hash_is_trusted_when_first_read(serve, offer, cache):
    """Once it could be read its hash holds: damage is mended, and a server that changed its mind is refused."""

    def check(path: Path) -> None:
        if not path.read_bytes().startswith(CONTENT[:9]):
            raise UserError("not readable")

    server = serve()
    server.pages["/a.gz"] = b"<html>moved</html>"
    offer(Web(server.url("a.gz")), sha256=None, size=None, check=check)
    with pytest.raises(UserError, match="not readable"):
        sources.fetch(KEY)
    assert files_in(cache) == [".lock"]
    server.pages["/a.gz"] = PACKED
    sources.fetch(KEY).write_bytes(CONTENT[:50])
    assert sources.fetch(KEY).read_bytes() == CONTENT
    (cache / KEY).unlink()
    server.pages["/a.gz"] = gzip.compress(CONTENT + b"changed")
    with pytest.raises(UserError, match=f"instead of {SHA[:12]}"):
        sources.fetch(KEY)


def test_a_cache_that_cannot_be_made_is_one_line(offer, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "file"))
    offer(Web("http://127.0.0.1:1/x.gz"))
    with pytest.raises(UserError, match=r"cannot keep test/file in .*: "):
        sources.fetch(KEY)


def test_a_full_disk_ends_the_search_and_leaves_nothing(serve, offer, cache, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server = serve()
    offer(Web(server.url("good.gz")), Web(server.url("plain.gz")))
    monkeypatch.setattr(sources.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        sources.fetch(KEY)
    assert server.asked == ["/good.gz"]
    assert files_in(cache) == [".lock"]


def test_those_who_want_a_file_at_the_same_time_fetch_it_once(serve, offer):
    server = serve()
    offer(Web(server.url("good.gz")))
    threads = [threading.Thread(target=sources.fetch, args=(KEY,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.asked == ["/good.gz"]


# Imports only what sources.py itself needs: the packages' own __init__ files are passed over.
ALONE = """
import sys, types
for name, folder in (("torchcaps", {root!r}), ("torchcaps.data", {root!r} + "/data")):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [folder]
from torchcaps.data import sources
from torchcaps.data.sources import catalogue, clients
"""


def alone(script: str) -> list[str]:
    return [sys.executable, "-c", ALONE.format(root=str(Path(sources.__file__).parents[2])) + script]


def test_a_killed_process_leaves_no_half_file(serve, offer, cache):
    server = serve()
    server.pages["/halts.gz"] = os.urandom(1 << 20)
    script = f"""
from functools import partial
source = catalogue.Source(clients.Web({server.url("halts.gz")!r}), partial(catalogue.member, name="halts.gz"))
catalogue.FILES[{KEY!r}] = catalogue.FileSpec({KEY!r}, {SHA!r}, (source,), {len(CONTENT)})
sources.fetch({KEY!r})
"""
    process = subprocess.Popen(alone(script), stderr=subprocess.DEVNULL)
    try:
        while not any(path.stat().st_size for path in cache.glob(".partial-*/halts.gz")):
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (cache / KEY).exists()
    assert list(cache.glob(".partial-*"))
    offer(Web(server.url("good.gz")))
    assert sources.fetch(KEY).read_bytes() == CONTENT
    assert not list(cache.glob(".partial-*"))


def test_importing_is_light():
    script = "print(sorted({'pooch', 'requests', 'rich', 'filelock', 'PIL'} & set(sys.modules)))"
    done = subprocess.run(alone(script), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_terminal_sees_a_bar(serve, offer, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    offer(Web(serve().url("good.gz")))
    sources.fetch(KEY)
    out, err = capsys.readouterr()
    assert out == ""
    assert "kB" in err or "bytes" in err


# the table, and the arrays


def test_the_cache_is_where_the_platform_keeps_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCHCAPS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sources.cache_dir().parts[-1] == "torchcaps"
    if sys.platform == "linux":
        assert sources.cache_dir() == tmp_path / "torchcaps"
    monkeypatch.setenv("TORCHCAPS_DATA", "~/data")
    assert sources.cache_dir() == Path.home() / "data"


def test_every_file_has_a_hash_or_a_reason_and_several_sources():
    assert sorted(key for keys in SETS.values() for key in keys) == sorted(
        key for key in FILES if not key.startswith(f"{RUNTIME}/")
    )
    assert len({spec.place for spec in FILES.values()}) == len(FILES)
    for key, spec in FILES.items():
        match key.partition("/")[0]:
            case "mnist-mini":
                assert spec.bundled
            case "smallnorb" | "affnist" | "norb-style":
                assert spec.sha256 is None
                assert spec.check
                assert spec.sources
            case "svhn-rebuilt":
                assert spec.sha256 is None
                assert spec.check
                assert not spec.sources
            case "svhn" | "onnxruntime-web":
                assert len(spec.sha256 or "") == 64
                assert spec.size
                assert len(spec.sources) == 1
            case _:
                assert len(spec.sha256 or "") == 64
                assert spec.size
                assert len(spec.sources) >= 3
                assert not isinstance(spec.sources[-1].archive, Web)


def test_hashes_are_those_of_the_table_or_of_the_first_fetch(offer, cache, monkeypatch):
    assert sources.hashes("mnist")["mnist/train-images"].startswith("ba891046")
    assert sources.hashes("svhn")["svhn/test"].startswith("cdce80df")
    assert sources.hashes("smallnorb") == {}
    monkeypatch.setitem(SETS, "test", (KEY,))
    offer(sha256=None, size=None, check=Path.read_bytes)
    (cache / "test").mkdir(parents=True)
    (cache / KEY).write_bytes(CONTENT)
    sources.fetch(KEY)
    assert sources.hashes("test") == {KEY: SHA}


@pytest.mark.parametrize(
    ("split", "count", "first"), [("train", 5000, [5, 0, 4, 1, 9]), ("test", 1000, [7, 2, 1, 0, 4])]
)
def test_the_bundled_digits_load_without_any_source(split, count, first, cache):
    images, labels = sources.load_arrays("mnist-mini", split)
    assert images.shape == (count, 1, 28, 28)
    assert images.dtype == np.uint8
    assert images.max() == 255
    assert images.flags.writeable
    assert labels[:5].tolist() == first
    assert labels.dtype == np.int64
    assert set(labels.tolist()) == set(range(10))
    assert not cache.exists()


def test_stereo_pairs_put_there_by_hand_are_loaded(cache):
    images = np.random.default_rng(0).integers(0, 256, (4, 2, 96, 96), np.uint8)
    norb.write(cache / FILES["smallnorb/test-dat"].place, images)
    norb.write(cache / FILES["smallnorb/test-cat"].place, np.array([0, 4, 2, 1], np.int32))
    read, labels = sources.load_arrays("smallnorb", "test")
    np.testing.assert_array_equal(read, images, strict=True)
    np.testing.assert_array_equal(labels, np.array([0, 4, 2, 1]), strict=True)
    norb.write(cache / FILES["smallnorb/train-dat"].place, images)
    norb.write(cache / FILES["smallnorb/train-cat"].place, np.array([0], np.int32))
    with pytest.raises(UserError, match="4 images but 1 labels"):
        sources.load_arrays("smallnorb", "train")


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(
        UserError, match="mnist-mini, mnist, fashion-mnist, cifar10, smallnorb, svhn, svhn-rebuilt, affnist"
    ):
        sources.load_arrays("imagenet", "train")
    with pytest.raises(UserError, match="mnist/train-images"):
        sources.fetch("mnist/nothing")
