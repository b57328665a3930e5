"""A run folder from somebody else does not choose which folder of this machine is opened."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from PIL import Image

from torchcaps.core import seal
from torchcaps.core.errors import UserError
from torchcaps.data import folder, own, resolve
from torchcaps.data.folder.checks import check_record
from torchcaps.training.runs import check_folder, run_data, run_test_set, seal_folders
from torchcaps.training.train import go_on

CONFIG = {"data": "mnist", "test": None}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "private"
    for label in "ab":
        (root / label).mkdir(parents=True)
        for n in range(8):
            Image.new("L", (8, 8), 10 * n + ord(label)).save(root / label / f"{n}.png")
    return root


@pytest.fixture
def run(tmp_path: Path, images: Path) -> Path:
    """A run of one's own images."""
    path = tmp_path / "run"
    path.mkdir()
    folder.load(str(folder.collect(str(images), (1, 8, 8)))).save(path / folder.RECORD)
    return path


def config(run: Path, **train: object) -> dict:
    return {"train": {**CONFIG, "data": str(run / folder.RECORD), **train}}


def elsewhere(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """From here on, it is another user's machine: another key, another cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "other home"))
    monkeypatch.setenv("TORCHCAPS_DATA", str(home / "other cache"))


def test_ones_own_runs_are_opened_also_when_moved_and_without_the_cache(run, home):
    assert len(run_data(run, config(run)).images("train")) > 0
    shutil.rmtree(home / "cache")
    moved = run.rename(home / "moved")
    assert len(run_data(moved, config(moved)).images("train")) > 0


def test_a_run_from_elsewhere_opens_nothing(run, home, images, monkeypatch):
    elsewhere(monkeypatch, home)
    data = run_data(run, config(run))
    assert data.classes == ("a", "b"), "what is needed to predict is known"
    assert not data.is_here()
    opened = []
    monkeypatch.setattr(folder, "write_decoded", lambda *args: opened.append(args))
    with pytest.raises(UserError, match=f"not looked for at {images}: .* give data=FOLDER"):
        data.images("test")
    assert not opened


def test_the_user_says_where_the_images_are(run, home, images, monkeypatch):
    before = run_data(run, config(run)).images("test").images.clone()
    elsewhere(monkeypatch, home)
    assert run_data(run, config(run), images).images("test").images.equal(before)
    other = home / "other pictures"
    shutil.copytree(images, other)
    assert run_data(run, config(run), str(other)).images("test").images.equal(before)
    Image.new("L", (8, 8), 255).save(other / "a" / "0.png")
    Image.new("L", (8, 8), 255).save(other / "b" / "0.png")
    changed = run_data(run, config(run), str(other))
    with pytest.raises(UserError, match="has changed"):
        [changed.images(split) for split in ("train", "validation", "test")]
    with pytest.raises(UserError, match="leave data out"):
        run_data(home, {"train": CONFIG}, images)


def test_a_changed_record_is_not_ours(run, images):
    record = json.loads((run / folder.RECORD).read_text())
    for change in ({"root": "/etc"}, {"seal": "0" * 64}, {"seal": "é"}, {"name": "another"}):
        (run / folder.RECORD).write_text(json.dumps({**record, **change}))
        with pytest.raises(UserError, match="was not made here"):
            run_data(run, config(run)).images("test")


def test_a_record_of_something_else_is_one_line(run):
    record = json.loads((run / folder.RECORD).read_text())
    check_record(record)
    for field in ("name", "root", "classes", "image", "files", "sha256", "unreadable", "notes", "key"):
        for value in (None, 3, "\0", [3], {"x": 1}, [-1, 2, 3]):
            with pytest.raises(ValueError, match="is missing or not what it should be"):
                check_record({**record, field: value})
    for whole in (None, [], "x"):
        with pytest.raises(ValueError, match="not a JSON object"):
            check_record(whole)
    (run / folder.RECORD).write_text("[" * 100_000)
    with pytest.raises(UserError, match="is not a record of images"):
        run_data(run, config(run))


def test_a_record_that_changes_within_a_tick_of_the_clock_is_read_again(run):
    path, times = run / folder.RECORD, (run / folder.RECORD).stat()
    before = folder.load(str(path))
    path.write_text(json.dumps({**asdict(before), "seal": ""}))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert folder.load(str(path)).seal == ""


def test_records_of_earlier_versions_are_known_by_the_cache(run, home):
    record = json.loads((run / folder.RECORD).read_text())
    del record["seal"]
    (run / folder.RECORD).write_text(json.dumps(record))
    assert len(run_data(run, config(run)).images("test")) > 0
    shutil.rmtree(home / "cache")
    with pytest.raises(UserError, match="was not made here"):
        run_data(run, config(run)).images("test")


@pytest.mark.parametrize("how", ["path", "link", "absolute"])
def test_images_inside_the_run_are_opened_but_none_outside(run, home, images, monkeypatch, how):
    shutil.copytree(images, run / "images")
    record = folder.load(str(run / folder.RECORD))
    inside = replace(record, root="images", seal="")
    (run / folder.RECORD).write_text(json.dumps(asdict(inside)))
    elsewhere(monkeypatch, home)
    assert len(run_data(run, config(run)).images("test")) > 0
    path, label = record.rows("test")[0]
    name = record.classes[label]
    if how == "link":
        (run / "images" / path).unlink()
        (run / "images" / path).symlink_to(images / path)
    else:
        there = "../../private/a/1.png" if how == "path" else str(images / "a" / "1.png")
        files = {**inside.files, "test": {**inside.files["test"], name: [there]}}
        (run / folder.RECORD).write_text(json.dumps(asdict(replace(inside, files=files))))
    with pytest.raises(UserError, match="is not inside"):
        run_data(run, config(run)).images("test")


def test_a_key_of_other_images_does_not_show_them(run, home, images):
    """A record that names what was decoded of another folder gets its own place in the cache."""
    record = folder.load(str(run / folder.RECORD))
    (run / "images").mkdir()
    shutil.copytree(images, run / "images", dirs_exist_ok=True)
    (run / folder.RECORD).write_text(json.dumps(asdict(replace(record, root="images", seal=""))))
    found = own.record(run / folder.RECORD)
    assert found.known is not None
    assert found.known.key != record.key


def test_folders_in_a_configuration_are_held_to_its_seal(run, home, images, monkeypatch):
    written = seal_folders(config(run, test=str(images)))
    check_folder(run, written, str(images))
    known = resolve(str(run / folder.RECORD))
    assert len(run_test_set(run, written, known)) > 0
    for changed in ({"seal": "x"}, {"folders": [str(images), "/etc"]}, {"folders": ["/etc"]}):
        with pytest.raises(UserError, match="was not made here"):
            check_folder(run, {**written, **changed}, str(images))
    elsewhere(monkeypatch, home)
    with pytest.raises(UserError, match=f"so {images}, which it names, is not opened"):
        run_test_set(run, written, known)
    (run / "inside").mkdir()
    check_folder(run, config(run), str(run / "inside"))
    check_folder(run, config(run), "mnist")


def test_resuming_opens_no_folder_of_somebody_elses_choice(home, images):
    run = home / "sent"
    run.mkdir()
    train = {"model": "capsnet-mnist-small", "data": str(images), "steps": 1}
    (run / "config.json").write_text(json.dumps({"train": train, "model": {}}))
    with pytest.raises(UserError, match="is not opened"):
        go_on(run, quiet=True)


def test_a_key_that_others_can_read_is_not_used(home):
    sealed = seal.seal("text")
    assert seal.is_sealed("text", sealed)
    assert not seal.is_sealed("other", sealed)
    seal._key.cache_clear()
    assert seal.is_sealed("text", sealed), "it is kept"
    (home / "home" / "torchcaps" / "key").chmod(0o644)
    seal._key.cache_clear()
    assert not seal.is_sealed("text", sealed)
    seal._key.cache_clear()
