"""Files that wait forever, become too large, run other programs or steer the terminal: one line each, and on."""

import gzip
import io
import os
import socket
import stat
import struct
import tarfile
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from torchcaps.core.errors import UserError
from torchcaps.core.files import make_private, open_regular, read_json, read_regular
from torchcaps.core.progress import Progress, say
from torchcaps.core.text import printable
from torchcaps.data import named, sources
from torchcaps.data.folder import collect
from torchcaps.data.folder.division import find_copies
from torchcaps.data.folder.listing import Labelled, files_below, list_images, natural
from torchcaps.data.readers import matlab, svhn
from torchcaps.data.readers.pictures import FORMATS, open_image
from torchcaps.data.sources import clients
from torchcaps.data.sources.catalogue import FILES
from torchcaps.data.sources.clients import Npm, Pypi, SourceError, Web

PACKAGE = Path(named.__file__).parents[1]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "cache"


def in_time(call: Callable[[], object], seconds: float = 20.0) -> object:
    """What it returns or raises; a call that waits for somebody fails the test instead of stopping all of them."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except UserError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits"
    return found[0]


def pictures(root: Path, *classes: str, count: int = 4) -> Path:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for n in range(count):
            Image.new("L", (8, 8), 40 * number + n).save(root / name / f"{n}.png")
    return root


# regular files only


def special(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.path.relpath(path))
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_what_is_no_regular_file_is_passed_over_with_a_line(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.png"
    special(path, kind)
    for read in (open_image, open_regular, read_regular, read_json):
        error = in_time(lambda read=read: read(path))
        assert isinstance(error, UserError)
        assert str(error) == f"{path} is not a regular file"


def test_a_folder_with_pipes_in_it_is_read(tmp_path):
    root = pictures(tmp_path / "x", "a", "b", count=10)
    os.mkfifo(root / "a" / "p.png")
    os.mkfifo(root / "b" / "q.png")
    assert in_time(lambda: find_copies(root, [Labelled("a/p.png", "a"), Labelled("b/q.png", "b")])) == {}
    (root / "b" / "q.png").rename(root / "table.csv")
    assert "is not a regular file" in str(in_time(lambda: list_images(root / "table.csv")))
    (root / "table.csv").unlink()
    record = named.resolve(str(in_time(lambda: collect(str(root), (1, 8, 8)))))
    assert record.collection.unreadable == [f"{root}/a/p.png is not a regular file"]


# every folder once


def test_links_that_double_are_followed_once(tmp_path):
    for level in range(40):
        (tmp_path / "x" / "a" / str(level)).mkdir(parents=True)
        if level:
            for link in ("one", "two"):
                (tmp_path / "x" / "a" / str(level) / link).symlink_to(tmp_path / "x" / "a" / str(level - 1))
    (tmp_path / "x" / "a" / "0" / "p.png").touch()
    assert list(files_below(tmp_path / "x")) == [str(tmp_path / "x/a/0/p.png")]


def test_a_link_to_another_class_does_not_take_its_images(tmp_path):
    root = pictures(tmp_path / "x", "a", "b", "c")
    (root / "a" / "all of b").symlink_to(root / "b")
    (root / "alias").symlink_to(root / "c")
    elsewhere = pictures(tmp_path / "y", "d")
    (root / "b" / "more").symlink_to(elsewhere / "d")
    found = list_images(root)
    assert {label: sum(file.label == label for file in found.files) for label in found.classes} == {
        "a": 4,
        "b": 8,
        "c": 4,
    }
    assert found.empty == ("alias",)


def test_numbers_in_names_may_be_long():
    names = ["x" + "9" * 5000, "x1" + "0" * 5000, "x9", "x10", "x010"]
    assert sorted(names, key=natural) == ["x9", "x010", "x10", "x" + "9" * 5000, "x1" + "0" * 5000]


def test_a_label_of_5000_digits(tmp_path):
    root = pictures(tmp_path / "x", "a")
    rows = "".join(f"a/{n}.png,{'7' * 5000 if n % 2 else 3}\n" for n in range(4))
    (root / "table.csv").write_text(f"path,label\n{rows}")
    assert list_images(root / "table.csv").classes == ("3", "7" * 5000)


# decoders by name


def test_decoders_are_named_wherever_a_picture_is_opened():
    unnamed = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "Image.open(" in line and "formats=" not in line
    ]
    assert unnamed == []


def test_postscript_called_png_starts_no_program(tmp_path, monkeypatch):
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a program is started")

    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr("subprocess.check_call", start)
    Image.new("RGB", (30, 30)).save(tmp_path / "test_batch.png", "EPS")
    with pytest.raises(UserError, match="not an image that can be read"):
        open_image(tmp_path / "test_batch.png")
    assert not {"EPS", "PDF", "MPEG", "WMF"} & set(FORMATS)


# limits before anything is unpacked


def tar_of_zeros(path: Path, size: int, count: int = 1) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for number in range(count):
            member = tarfile.TarInfo(f"package/{number}")
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    return path


def test_an_archive_may_not_become_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "MOST_UNPACKED", 1 << 20)
    tar = tar_of_zeros(tmp_path / "a.tgz", 600_000, count=2)
    with pytest.raises(SourceError, match="would become more than 1 MB"):
        clients._unpack(tar)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "a.tgz"]
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("large", bytes(2 << 20))
        packed.writestr("small", b"small")
    with pytest.raises(SourceError, match="would become more than 1 MB"):
        clients._unpack(tmp_path / "b.zip")
    assert not (tmp_path / "large").exists()
    clients._unpack(tmp_path / "b.zip", only=("small",))
    assert (tmp_path / "small").read_bytes() == b"small"
    assert not (tmp_path / "large").exists()


def test_the_largest_archive_that_is_real_fits():
    assert 6 * 30_730_000 < clients.MOST_UNPACKED < 400_000_000


def test_an_archive_may_not_have_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "MOST_FILES", 3)
    with pytest.raises(SourceError, match="more than 3 files"):
        clients._unpack(tar_of_zeros(tmp_path / "a.tgz", 1, count=5))


def test_a_mat_file_may_not_take_too_much(tmp_path):
    """560 MB of zeros, said in the first bytes of what unpacks to them."""
    size = 560 << 20
    packer = zlib.compressobj(9)
    packed = packer.compress(struct.pack("<II", 14, size))
    block = bytes(1 << 20)
    packed += b"".join(packer.compress(block) for _ in range(16)) + packer.flush()
    content = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed
    (tmp_path / "x.mat").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(UserError, match="would take 560 MB"):
        svhn.read(tmp_path / "x.mat")
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_a_mat_file_may_not_become_more_than_it_says(tmp_path):
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    packed = zlib.compress(struct.pack("<II", 14, 8) + bytes(4 << 20))
    (tmp_path / "x.mat").write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(UserError, match="longer than it says"):
        matlab.read(tmp_path / "x.mat")
    (tmp_path / "y.mat").write_bytes(gzip.compress(header + bytes(4 << 20)))
    with pytest.raises(UserError, match="would take more than 1 MB"):
        matlab.read(tmp_path / "y.mat", 1 << 20)


# verified before they are opened


def test_packages_are_verified_before_they_are_unpacked(tmp_path, monkeypatch):
    tar = tar_of_zeros(tmp_path / "thing.tgz", 10)
    monkeypatch.setattr(clients, "_run", lambda *_: None)
    monkeypatch.setattr(clients, "_unpack", lambda *_: pytest.fail("it is unpacked"))
    with pytest.raises(SourceError, match=r"sha256 .* instead of 0000"):
        Npm("thing@1", "0" * 64).collect(tmp_path, Progress("thing"))
    tar.rename(tmp_path / "thing.whl")
    with pytest.raises(SourceError, match=r"sha256 .* instead of 0000"):
        Pypi("thing==1", "0" * 64).collect(tmp_path, Progress("thing"))


def test_whatever_has_a_hash_comes_in_what_has_one_and_over_https():
    for spec in FILES.values():
        for source in spec.sources:
            archive = source.archive
            if isinstance(archive, Web):
                assert archive.url.startswith("https://")
            if spec.sha256 and isinstance(archive, Web | Npm | Pypi):
                assert len(archive.sha256 or "") == 64


def test_rebuilt_house_numbers_are_never_called_verified(cache, capsys, monkeypatch):
    from torchcaps.app.cli import main

    monkeypatch.setattr(sources, "_trusted", lambda spec: True)
    main(["data", "fetch", "svhn-rebuilt"])
    said = capsys.readouterr().out
    assert said.startswith("svhn-rebuilt is here, with no published hash to verify it by: ")
    main(["data", "fetch", "svhn"])
    assert "svhn is here and verified" in capsys.readouterr().out


def test_rebuilt_house_numbers_are_not_taken_for_the_official_ones(cache):
    for name in ("svhn", "svhn-rebuilt"):
        (cache / name).mkdir(parents=True)
        (cache / name / "test_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file of somebody")
    with sources.offline(), pytest.raises(UserError, match="is not on this machine"):
        sources.fetch("svhn/test")
    with pytest.raises(
        UserError, match=r"nothing brings svhn-rebuilt/test: put it at .* \(the file there now is not it\)"
    ):
        sources.fetch("svhn-rebuilt/test")


# names and places


def test_names_are_escaped_wherever_they_are_said(capsys):
    name = "a\x1b]0;title\x07\u202eb"
    assert str(UserError(f"{name} is bad")) == f"{printable(name)} is bad"
    say(f"left out: {name}")
    assert capsys.readouterr().err == f"left out: {printable(name)}\n"
    assert printable(printable(name)) == printable(name)


def test_caches_are_private(tmp_path, cache):
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    collect(str(pictures(tmp_path / "x", "a", "b", count=5)), (1, 8, 8))
    assert mode(cache / "own-images") == 0o700
    assert mode(tmp_path / "home" / "torchcaps") == 0o700
    assert mode(tmp_path / "home" / "torchcaps" / "key") == 0o600
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    make_private(shared, existing=False)
    assert mode(shared) == 0o755
    make_private(shared)
    assert mode(shared) == 0o700
