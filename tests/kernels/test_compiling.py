"""The C loops: taken from the package, else compiled once into a cache that is private, whole and verified."""

import logging
import os
import shutil
import stat
from pathlib import Path

import pytest

from torchcaps.kernels import cache, compiler, native

needs_compiler = pytest.mark.skipif(compiler.command() is None, reason="no C compiler here")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")


LONGEST = 10
"""Seconds of processor time for all sources: 4 to 5 on the machine of docs/performance.md; others are half as fast."""


def again(name: str = "columns") -> native.Loaded:
    """What a new process would find."""
    native.library.cache_clear()
    native._told.clear()
    return native.state(name)


def libraries(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.so")}


@pytest.fixture
def quick(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with one source only, which compiles in no time."""
    monkeypatch.setattr(compiler, "sources", lambda: ["columns"])
    return unbuilt


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that notes every call and then fails."""
    calls, program = tmp_path / "calls", tmp_path / "broken-cc"
    program.write_text(f"#!/bin/sh\necho call >> '{calls}'\necho 'x.c:1: error: no such thing' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("CC", str(program))
    return calls


@pytest.mark.alone
@needs_compiler
def test_everything_is_compiled_once_in_seconds_and_announced_in_one_line(
    unbuilt: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Processor time of all files together, of this process and of the compiler; one of three tries is undisturbed."""

    def seconds() -> float:
        shutil.rmtree(unbuilt, ignore_errors=True)
        native.library.cache_clear()
        before = os.times()
        assert native.state("columns").origin == "compiled"
        return sum(os.times()[:4]) - sum(before[:4])

    first = seconds()
    said = capfd.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "compiling" in line
    assert first < LONGEST or seconds() < LONGEST or seconds() < LONGEST
    capfd.readouterr()
    built = libraries(unbuilt)
    assert {name.split("-")[0] for name in built} == set(compiler.sources())
    assert all(again(name).origin == "cache" for name in compiler.sources())
    assert libraries(unbuilt) == built
    assert capfd.readouterr().err == ""


@needs_compiler
def test_folder_and_files_are_private(quick: Path) -> None:
    quick.mkdir(parents=True)
    quick.chmod(0o777)
    path = Path(again().path)
    assert stat.S_IMODE(quick.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@needs_compiler
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "writable", "link"])
def test_damaged_or_unsafe_library_is_built_again_not_loaded(quick: Path, damage: str, tmp_path: Path) -> None:
    path = Path(again().path)
    content = path.read_bytes()
    if damage == "link":
        elsewhere = tmp_path / "elsewhere.so"
        shutil.move(path, elsewhere)
        path.symlink_to(elsewhere)
    elif damage == "writable":
        path.chmod(0o666)
    else:
        flipped = bytes([*content[:5000], content[5000] ^ 1]) + content[5001:]
        # A new file, as this process has the old one mapped.
        path.unlink()
        path.write_bytes({"empty": b"", "cut": content[:1000], "flipped": flipped}[damage])
    found = again()
    assert found.origin == "compiled"
    assert found.functions is not None
    assert not path.is_symlink()
    assert path.read_bytes() == content


@needs_compiler
@needs_root
def test_library_or_folder_of_another_user_is_never_loaded(quick: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(again().path)
    os.chown(path, 12345, 12345)
    assert again().origin == "compiled"
    assert path.stat().st_uid == 0
    os.chown(quick, 12345, 12345)
    with caplog.at_level(logging.WARNING, "torchcaps"):
        assert again().functions is None
    assert "another user" in caplog.text


@needs_compiler
def test_what_belongs_to_somebody_else_is_not_loaded(
    quick: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same for those who are not root: first the file is another's, then everything."""
    again()
    mine = cache._is_mine
    monkeypatch.setattr(cache, "_is_mine", lambda found: not stat.S_ISREG(found.st_mode) and mine(found))
    assert again().origin != "cache"
    monkeypatch.setattr(cache, "_is_mine", mine)
    monkeypatch.setattr(cache.os, "geteuid", lambda: os.getuid() + 1)
    assert again().functions is None
    assert "another user" in caplog.text


@needs_compiler
def test_nothing_is_loaded_by_way_of_a_link(quick: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    quick.parent.mkdir()
    quick.symlink_to(tmp_path / "elsewhere")
    assert again().functions is None
    assert not list((tmp_path / "elsewhere").iterdir())


@needs_compiler
def test_nothing_is_loaded_from_below_a_folder_that_everybody_may_write_to(
    quick: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(again().path)
    assert again().origin == "cache"
    quick.parent.chmod(0o777)
    assert again().functions is None
    assert caplog.text.count("everybody may write to") == 1
    quick.parent.chmod(0o1777)
    assert again().path == str(path), "as in /tmp, where nobody can rename what is another's"


def test_failed_attempt_is_logged_once_and_remembered(
    unbuilt: Path, fake_compiler: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = again("columns")
    assert found.functions is None
    assert "no such thing" in found.reason
    (record,) = caplog.records
    assert "no such thing" in record.message
    calls = len(fake_compiler.read_text().splitlines())
    caplog.clear()
    with caplog.at_level(logging.INFO, "torchcaps"):
        for name in compiler.sources():
            assert again(name).functions is None
        assert all(record.levelno == logging.INFO for record in caplog.records)
        caplog.clear()
        native.library.cache_clear()
        native._told.clear()
        assert not any(map(native.library, compiler.sources()))
        assert len(caplog.records) == 1, "once for all files"
    compiled = calls + 2 * len(compiler.sources())
    assert len(fake_compiler.read_text().splitlines()) == compiled, "only asked which compiler it is"
    monkeypatch.setattr(cache, "FAILURE_SECONDS", 0)
    again("columns")
    assert len(fake_compiler.read_text().splitlines()) > compiled + 1


@needs_compiler
def test_damaged_note_of_a_failure_is_no_failure(quick: Path) -> None:
    path = Path(again().path)
    stem = path.name.rsplit("-", 1)[0]
    path.unlink()
    (quick / f"{stem}.failed.json").write_text("{")
    assert again().functions is not None


@needs_compiler
def test_compiler_may_have_arguments(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{shutil.which('cc')} -O2 -DNOTHING='a b'")
    assert again().origin == "compiled"


@needs_compiler
def test_folder_that_cannot_be_made_means_no_loops(
    quick: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "cache_folder", lambda: Path("/dev/null/cache"))
    assert again().functions is None
    assert "cannot be kept" in caplog.text


@needs_compiler
def test_packaged_library_comes_first_and_an_edited_source_is_noticed(
    quick: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = tmp_path / "lib"
    packaged.mkdir()
    monkeypatch.setattr(compiler, "PACKAGED", packaged)
    command = compiler.command()
    assert command is not None
    openmp = compiler.shares_openmp(command)
    for level in native._usable_levels():
        target = packaged / f"{compiler.stem('columns', level, openmp)}.so"
        compiler.build(command, "columns", level, openmp, target)
    found = again()
    assert (found.origin, found.level) == ("package", native._usable_levels()[0])
    assert not quick.exists()
    Path(found.path).unlink()
    assert again().level in (native._usable_levels()[1:] or ["base"])
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "columns.c").write_text((compiler.FOLDER / "columns.c").read_text() + "/* edited */\n")
    monkeypatch.setattr(compiler, "FOLDER", sources)
    assert again().origin == "compiled"


@needs_compiler
def test_packaged_library_that_is_damaged_is_passed_over(
    quick: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "PACKAGED", tmp_path)
    for level in native._usable_levels():
        for openmp in (True, False):
            (tmp_path / f"{compiler.stem('columns', level, openmp)}.so").touch()
    assert again().origin == "compiled"


@needs_compiler
def test_without_shared_openmp_none_is_used(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What such loops compute is in `test_without_openmp.py`."""
    monkeypatch.setattr(native, "_share_openmp", lambda: False)
    found = again()
    assert found.functions is not None
    assert not found.openmp
    assert b"GOMP" not in Path(found.path).read_bytes()


@needs_compiler
def test_no_second_openmp_is_linked(quick: Path) -> None:
    assert b"libgomp" not in Path(again().path).read_bytes()


def test_levels_follow_what_the_processor_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for capability, expected in {
        "AVX512": ["avx512", "avx2", "base"],
        "AVX2": ["avx2", "base"],
        "NO": ["base"],
    }.items():
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda found=capability: found)
        assert native._usable_levels() == expected
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert native._usable_levels() == ["base"]
