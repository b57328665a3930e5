"""Your own images: any file, divided fairly, decoded once, recorded, and trained on by one command."""

import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from torchcaps import data as named
from torchcaps.app.cli import main
from torchcaps.app.web.samples import load_samples
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json
from torchcaps.data import folder
from torchcaps.data.folder.division import divide, find_copies
from torchcaps.data.folder.listing import SPLITS, Labelled, list_images
from torchcaps.data.readers.pictures import open_image, read_bytes
from torchcaps.data.sets import MOST_REPEATS, ImageSet, ImageStream
from torchcaps.training.runs import load_run
from torchcaps.viz.report.sections import read_run


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TORCHCAPS_DATA", str(place))
    folder.survey.cache_clear()
    return place


def shape(kind: str, seed: int, size: tuple[int, int] = (40, 40)) -> Image.Image:
    """A bright disc, or a bright frame, somewhere on a dark ground of noise."""
    random = np.random.RandomState(seed)
    picture = Image.fromarray(random.randint(0, 60, (size[1], size[0], 3), dtype=np.uint8))
    x, y = (random.randint(side // 3, side // 2) for side in size)
    box, pen = (x - 8, y - 8, x + 12, y + 12), ImageDraw.Draw(picture)
    bright = tuple(random.randint(160, 256, 3).tolist())
    if kind == "disc":
        pen.ellipse(box, fill=bright)
    else:
        pen.rectangle(box, outline=bright, width=3)
    return picture


def make(root: Path, counts: dict[str, int], suffix: str = "png", size: tuple[int, int] = (40, 40)) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for index in range(count):
            shape(name, 1000 * number + index, size).save(root / name / f"{index}.{suffix}")
    return root


def collected(root: Path, image: tuple[int, int, int] = (3, 8, 8)) -> folder.Collection:
    return folder.load(str(folder.collect(str(root), image)))


def files_of(record: folder.Collection, split: str) -> set[str]:
    return {path for path, _ in record.rows(split)}


def test_every_image_is_in_one_split_and_every_class_in_each(tmp_path: Path) -> None:
    record = collected(make(tmp_path / "x", {"a": 40, "b": 20, "c": 3}))
    assert sorted(path for split in SPLITS for path in files_of(record, split)) == sorted(
        file.path for file in list_images(tmp_path / "x").files
    )
    counts = {split: Counter(label for _, label in record.rows(split)) for split in SPLITS}
    assert counts["test"] == {0: 6, 1: 3, 2: 1}
    assert counts["validation"] == {0: 4, 1: 2, 2: 1}
    assert counts["train"] == {0: 30, 1: 15, 2: 1}


def test_a_class_too_small_to_share_out_is_trained_on_and_said(tmp_path: Path) -> None:
    record = collected(make(tmp_path / "x", {"a": 10, "b": 2}))
    assert Counter(label for _, label in record.rows("train"))[1] == 2
    assert any("'b' has 2 images to train on and none to test" in line for line in record.notes)


def test_the_division_is_the_same_each_time_and_follows_the_names() -> None:
    files = [Labelled(f"a/{n}.png", "a") for n in range(30)]
    first, again = (divide(files, {}, {"test": 0.2}) for _ in range(2))
    assert first == again
    assert Counter(file.split for file in first) == {"train": 24, "test": 6}


def test_copies_stay_together_and_contradictions_are_said(tmp_path: Path) -> None:
    root = make(tmp_path / "x", {"a": 12, "b": 12})
    for number in range(6):
        shutil.copy(root / "a" / f"{number}.png", root / "a" / f"copy{number}.png")
    shutil.copy(root / "a" / "7.png", root / "b" / "liar.png")
    record = collected(root)
    split = {path: name for name in SPLITS for path in files_of(record, name)}
    assert all(split[f"a/{number}.png"] == split[f"a/copy{number}.png"] for number in range(6))
    assert len(find_copies(root, list_images(root).files)) == 14
    assert "14 files are copies of one another" in record.notes
    assert "the same image is labelled a and b" in record.notes


def test_the_same_pixels_in_two_given_splits_are_said(tmp_path: Path) -> None:
    root = tmp_path / "x"
    for split in ("train", "val", "test"):
        make(root / split, {"a": 4, "b": 4})
        for name in ("a", "b"):
            for index in range(4):
                shape(name, hash((split, name, index)) % 2**31).save(root / split / name / f"{index}.png")
    with Image.open(root / "train" / "a" / "1.png") as picture:
        picture.save(root / "test" / "a" / "2.bmp")  # other bytes, same pixels
    record = collected(root)
    assert {path.split("/")[0] for path in files_of(record, "validation")} == {"val"}
    assert Counter(len(files_of(record, split)) for split in SPLITS) == {8: 2, 9: 1}
    assert any(line.startswith("1 test images are also trained on") for line in record.notes)


def test_without_a_test_split_the_validation_images_are_scored(tmp_path: Path) -> None:
    make(tmp_path / "x" / "train", {"a": 10, "b": 10})
    make(tmp_path / "x" / "valid", {"a": 3, "b": 3})
    record = collected(tmp_path / "x")
    assert {path.split("/")[0] for path in files_of(record, "test")} == {"valid"}
    assert {path.split("/")[0] for path in files_of(record, "validation")} == {"train"}
    assert any("no test split" in line for line in record.notes)


@pytest.mark.parametrize(
    "text",
    ["path,label\n{}", "label;split;image\n{}", "{}"],
    ids=["named columns", "semicolons and a split", "no header"],
)
def test_a_table_of_paths_and_labels(tmp_path: Path, text: str) -> None:
    make(tmp_path / "x", {"a": 5, "b": 5})
    rows = [(f"x/{name}/{n}.png", name, "test" if n == 0 else "train") for name in "ab" for n in range(5)]
    line = "{1};{2};{0}" if "split" in text else "{0},{1}"
    table = tmp_path / "mine.csv"
    table.write_text(text.format("\n".join(line.format(*row) for row in rows)), encoding="utf-8-sig")
    record = collected(table)
    assert record.name == "mine"
    assert record.classes == ("a", "b")
    assert sum(len(files_of(record, split)) for split in SPLITS) == 10
    if "split" in text:
        assert files_of(record, "test") == {"x/a/0.png", "x/b/0.png"}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "column"),
        ("name,age\nx,3\n", "'path' and 'label'"),
        ("path,label\na.png,\n", "row 1"),
        ("path,label\na.png,x\na.png,y\n", "more than once"),
        ('path,label\na.png,"12 inch\nb.png,y\nc.png,z\n', "not a row of a table"),
        ("path,label,split\na.png,x,later\nb.png,y,test\n", "'later'"),
        ("path,label,split\na.png,x,test\nb.png,y,test\n", "no images to train on"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UserError, match=word):
        list_images(tmp_path / "t.csv")


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sub-folders"):
        list_images(tmp_path)
    make(tmp_path / "one", {"a": 3})
    with pytest.raises(UserError, match="one class only"):
        list_images(tmp_path / "one")
    (tmp_path / "none" / "a").mkdir(parents=True)
    with pytest.raises(UserError, match="has no images"):
        list_images(tmp_path / "none")


def test_for_testing_alone_one_class_will_do(tmp_path: Path) -> None:
    make(tmp_path / "one", {"a": 3})
    record = folder.load(str(folder.collect(str(tmp_path / "one"), (3, 8, 8), ("a", "b"))))
    assert len(record.images("test")) == 3
    (tmp_path / "t.csv").write_text("path,label,split\none/a/0.png,a,test\n")
    assert len(folder.load(str(folder.collect(str(tmp_path / "t.csv"), (3, 8, 8), ("a", "b")))).images("test")) == 1


def test_links_that_lead_back_or_nowhere_are_passed_over(tmp_path: Path) -> None:
    root = make(tmp_path / "x", {"a": 3, "b": 3})
    (root / "a" / "self").symlink_to(root / "a")
    (root / "a" / "loop").symlink_to("loop")
    (root / "b" / "gone").symlink_to(tmp_path / "gone")
    (root / "b" / "up").symlink_to(root)
    (root / "all").symlink_to(root)
    assert len(list_images(root).files) == 6


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_names_that_are_not_utf_8_are_trained_on(tmp_path: Path) -> None:
    root = make(tmp_path / "x", {"a": 6, os.fsdecode(b"caf\xe9"): 6})
    (root / "a" / "0.png").rename(root / "a" / os.fsdecode(b"\xe9.png"))
    record = collected(root)
    assert sum(len(record.rows(split)) for split in SPLITS) == 12


def test_a_record_of_other_images_or_from_elsewhere_is_refused(tmp_path: Path) -> None:
    root = make(tmp_path / "x", {"a": 5, "b": 5})
    path = folder.collect(str(root), (3, 8, 8))
    same = named.resolve(str(path))
    assert len(named.load_test_set(str(path), like=same)) > 0
    with pytest.raises(UserError, match="other images or classes"):
        named.load_test_set(str(path), like=replace(same, classes=("b", "a")))
    odd = tmp_path / "odd" / folder.RECORD
    odd.parent.mkdir()
    odd.write_text(json.dumps({**json.loads(path.read_text()), "key": "../../elsewhere"}))
    with pytest.raises(UserError, match="key"):
        folder.load(str(odd))


def test_classes_are_in_the_order_a_person_expects(tmp_path: Path) -> None:
    assert list_images(make(tmp_path / "x", {"10": 1, "9": 1, "B": 1, "a": 1})).classes == ("9", "10", "a", "B")


def test_few_unreadable_files_are_left_out_and_listed(tmp_path: Path) -> None:
    root = make(tmp_path / "x", {"a": 30, "b": 30})
    (root / "a" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    whole = (root / "b" / "0.png").read_bytes()
    (root / "b" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "a" / "notes.txt").write_text("not an image by its name")
    record = collected(root)
    assert sum(len(record.rows(split)) for split in SPLITS) == 60
    assert len(record.unreadable) == 2
    assert {Path(line.split()[0]).name for line in record.unreadable} == {"bad.png", "cut.png"}
    assert all(any(line in note for note in record.notes) for line in record.unreadable)


def test_many_unreadable_files_are_refused(tmp_path: Path) -> None:
    root = make(tmp_path / "x", {"a": 20, "b": 20})
    for number in range(3):
        (root / "a" / f"bad{number}.png").write_bytes(b"nothing")
    with pytest.raises(UserError, match="more than 5%"):
        collected(root)
    with pytest.raises(UserError, match="more than 5%"):
        collected(root)


@pytest.mark.parametrize(
    ("size", "mode", "expected"),
    [
        ((28, 28), "L", (1, 28, 28)),
        ((28, 28), "RGB", (3, 28, 28)),
        ((60, 20), "RGB", (3, 20, 60)),
        ((400, 300), "RGB", (3, 96, 128)),
        ((300, 301), "L", (1, 128, 128)),
        ((900, 100), "RGB", (3, 64, 128)),
    ],
)
def test_size_and_colour_are_chosen_from_the_images(
    tmp_path: Path, size: tuple[int, int], mode: str, expected: tuple[int, int, int]
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for n in range(2):
            # Grey pictures in files of three channels are grey all the same.
            shape(name, n, size).convert(mode).convert("RGB").save(tmp_path / name / f"{n}.jpg", quality=95)
    assert folder.survey(str(tmp_path)).image == expected
    assert folder.survey(str(tmp_path), (24, 32)).image == (expected[0], 24, 32)
    shift = named.resolve(str(tmp_path)).augment.shift
    assert shift == (max(4, min(expected[1:]) // 8) if expected[0] == 3 else 2)


def test_decoded_once_and_mapped(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "x", {"a": 12, "b": 12})
    first = collected(root).images("train")
    key = collected(root).key
    monkeypatch.setattr(folder, "write_decoded", None)  # a second decoding would fail
    second = collected(root).images("train")
    assert torch.equal(first.images, second.images)
    for row, (path, label) in enumerate(collected(root).rows("train")):
        assert np.array_equal(first.images[row].numpy(), read_bytes(root / path, (3, 8, 8)))
        assert first.labels[row] == label
    second.images[0] = 0  # reaches no file
    assert torch.equal(collected(root).images("train").images, first.images)
    monkeypatch.undo()
    monkeypatch.setenv("TORCHCAPS_DATA", str(cache))
    shape("a", 99).save(root / "a" / "0.png")
    assert collected(root).key != key


def test_a_record_outlives_the_cache_but_not_a_change(tmp_path: Path, cache: Path) -> None:
    root = make(tmp_path / "x", {"a": 12, "b": 12})
    kept = tmp_path / folder.RECORD
    collected(root).save(kept)
    before = named.images(str(kept), "test").images.clone()
    shutil.rmtree(cache / "own-images")
    assert torch.equal(named.images(str(kept), "test").images, before)
    shutil.rmtree(cache / "own-images")
    changed = root / folder.load(str(kept)).rows("test")[0][0]
    shape("a", 5000).save(changed)
    with pytest.raises(UserError, match="has changed"):
        named.images(str(kept), "test")
    shutil.rmtree(root)
    assert named.resolve(str(kept)).classes == ("a", "b")
    with pytest.raises(UserError, match="no longer at"):
        named.images(str(kept), "test")


def uneven(counts: tuple[int, ...]) -> ImageSet:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return ImageSet("uneven", torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), labels, tuple("abc"))


def test_balanced_streams_show_rare_classes_more_often() -> None:
    stream = ImageStream(uneven((400, 100, 2)), seed=0).balanced()
    shown = torch.cat([stream.batch(step, 40).labels for step in range(len(stream) // 40)])
    counts = torch.bincount(shown[:, 0])
    assert counts[0] == pytest.approx(400, abs=40)
    assert counts[1] == pytest.approx(400, abs=40)
    assert 0 < counts[2] <= 2 * MOST_REPEATS


def modes(root: Path) -> Path:
    """Three classes of a dozen, among them whatever cameras, scanners and the web have to offer."""
    make(root, {"disc": 12, "frame": 12, "third": 12}, size=(50, 44))
    (root / "disc" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n garbage")
    shape("disc", 1, (4000, 3000)).save(root / "disc" / "1.jpg")
    shape("frame", 2).convert("CMYK").save(root / "frame" / "2.jpg")
    frames = [shape("frame", seed) for seed in range(4)]
    frames[0].save(root / "frame" / "3.gif", save_all=True, append_images=frames[1:])
    for index, mode in enumerate(["L", "LA", "P", "RGBA", "1"]):
        shape("third", index).convert(mode).save(root / "third" / f"{index}.png")
    deep = np.asarray(shape("third", 5).convert("L")).astype(np.uint16) * 257
    Image.fromarray(deep).save(root / "third" / "5.tiff")
    shape("third", 6).save(root / "third" / "6.webp")
    return root


def test_mixed_files_train_evaluate_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = modes(tmp_path / "mixed"), tmp_path / "run"
    main(["train", "capsnet", "--data", str(root), "--epochs", "1", "--size", "24", "--out", str(out), "--json"])
    printed, said = capsys.readouterr()
    result = json.loads(printed)
    assert result["data"] == "mixed"
    assert "Traceback" not in said
    assert "0.png cannot be read" in said
    assert "sized to 3 classes of 24x24 images in colour; photo backbone" in said
    model, config = load_run(out)
    assert (model.config.image, model.config.classes) == ((3, 24, 24), 3)
    assert config["train"]["data"] == str(out / folder.RECORD)
    record = folder.load(str(out / folder.RECORD))
    assert read_json(out / "manifest.json")["data"] == {f"mixed/{name}": record.sha256[name] for name in SPLITS}

    shutil.copytree(out, tmp_path / "moved")
    assert named.resolve(config["train"]["data"]).title == "mixed"
    assert load_samples(config["train"]["data"])["shape"] == [3, 24, 24]
    main(["evaluate", str(tmp_path / "moved"), "--json"])
    scores = json.loads(capsys.readouterr().out)
    assert (scores["accuracy"], scores["images"]) == (result["accuracy"], result["images"])
    main(["evaluate", str(out), "--data", str(root), "--json"])
    assert json.loads(capsys.readouterr().out)["images"] == 40

    (out / "result.json").unlink()
    main(["train", "--resume", "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out)["weights_sha256"] == result["weights_sha256"]
    finished = read_run(out)
    assert finished.classes == ("disc", "frame", "third")
    assert len(finished.data) == result["images"]


def test_what_does_not_suit_own_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(make(tmp_path / "x", {"a": 8, "b": 8}))
    cases = {
        "--size": ["--size", "huge"],
        "8 to 1024": ["--size", "4"],
        "natural": ["--augment", "strong"],
        "--scale": ["--scale", "-1"],
        "--validation": ["--validation", "5"],
        "a batch of 64": ["--batch", "64"],
    }
    for word, options in cases.items():
        with pytest.raises(SystemExit) as stop:
            main(["train", "cnn", "--data", root, "--epochs", "1", "--out", str(tmp_path / "run"), *options])
        assert stop.value.code == 2
        assert word in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_cnn_trains_with_the_same_flags_and_another_model_keeps_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(make(tmp_path / "x", {"a": 12, "b": 12}))
    flags = ["--epochs", "1", "--augment", "none", "--rotate", "10", "--no-flip", "--balance", "classes"]
    main(["train", "cnn", "--data", root, "--out", str(tmp_path / "cnn"), "--size", "16x20", *flags])
    config = read_json(tmp_path / "cnn" / "config.json")
    assert config["model"]["image"] == [3, 16, 20]
    assert config["model"]["design"] == "photo"
    assert config["train"]["augment"]["rotation"] == 10
    assert not config["train"]["augment"]["flip"]
    again = tmp_path / "again"
    main(["train", "cnn", "--data", str(tmp_path / "cnn" / folder.RECORD), "--epochs", "1", "--out", str(again)])
    assert (again / folder.RECORD).read_bytes() == (tmp_path / "cnn" / folder.RECORD).read_bytes()
    main(
        ["train", "capsnet-mnist-small", "--data", root, "--batch", "8", "--epochs", "1", "--out", str(tmp_path / "s")]
    )
    config = read_json(tmp_path / "s" / "config.json")
    assert config["model"]["image"] == [1, 28, 28]
    assert config["model"]["classes"] == 2


def test_deep_greys_keep_their_shades_and_photographs_stand_upright(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)
    for top, name in ((1, "16.png"), (16, "12.tif")):
        Image.fromarray(np.tile(ramp // top, (16, 1))).save(tmp_path / name)
        shades = np.asarray(open_image(tmp_path / name))[0].astype(int)
        assert np.abs(shades - np.arange(256)).max() <= 1
    Image.fromarray(np.tile(np.linspace(0, 1, 256, dtype=np.float32), (16, 1))).save(tmp_path / "f.tif")
    assert np.abs(np.asarray(open_image(tmp_path / "f.tif"))[0].astype(int) - np.arange(256)).max() <= 1
    lying = Image.new("RGB", (40, 20))
    exif = lying.getexif()
    exif[0x0112] = 6
    lying.save(tmp_path / "lying.jpg", exif=exif)
    assert open_image(tmp_path / "lying.jpg").size == (20, 40)


def test_what_a_file_is_decides_who_reads_it(tmp_path: Path) -> None:
    postscript = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n"
    (tmp_path / "x.png").write_text(postscript)
    with pytest.raises(UserError, match="not an image that can be read"):
        open_image(tmp_path / "x.png")


def test_any_kind_of_colour_becomes_grey(tmp_path: Path) -> None:
    for mode in ("LAB", "CMYK", "YCbCr"):
        Image.new(mode, (16, 16)).save(tmp_path / f"{mode}.tif")
        assert read_bytes(tmp_path / f"{mode}.tif", (1, 8, 8)).shape == (1, 8, 8)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (9000, 9000)).save(tmp_path / "bomb.png")
    with pytest.raises(UserError, match="9000x9000 pixels; at most 67 million"):
        read_bytes(tmp_path / "bomb.png", (1, 8, 8))
