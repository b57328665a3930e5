"""ETH-80 on tiny files of its own layout: objects and viewpoints fall into the right splits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps import data as named
from torchcaps.app.cli import main
from torchcaps.data import eth80
from torchcaps.training.fit import fit

VIEWS = (
    [(0, 0)]
    + [(e, a) for e in (22, 45, 68) for a in (0, 90, 180, 270)]
    + [(35, a) for a in (45, 135, 225, 315)]
    + [(66, a) for a in (27, 63, 117, 153, 207, 243, 297, 333)]
    + [(90, a) for a in (0, 22, 45, 68, 90, 112, 135, 158, 180, 202, 225, 248, 270, 292, 315, 338)]
)


def write(place: Path, name: str, objects: tuple[int, ...], views: list[tuple[int, int]], side: int = 8) -> None:
    """Images of one colour: the category is in the red, the object in the green, the elevation in the blue."""
    for number, category in enumerate(eth80.CATEGORIES):
        for thing in objects:
            for e, a in views:
                path = place / name.format(c=category, o=thing, e=e, a=a)
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((side, side, 3), (number, thing, e), np.uint8)).save(path)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    write(tmp_path / "eth80", "{c}/{o:02d}/{e:02d}-{a:03d}.png", (1, 7, 14), VIEWS)
    return tmp_path / "eth80"


def test_objects_are_divided(data: Path) -> None:
    known = named.resolve("eth80")
    train, test = known.images("train"), known.images("test")
    assert (len(train), len(test)) == (2 * 8 * 41, 8 * 41)
    assert train.images.shape[1:] == known.image == (3, 32, 32)
    assert set(train.images[:, 1].unique().tolist()) == {1, 7}
    assert torch.equal(train.images[:, 0, 0, 0].long(), train.labels)
    assert set(test.images[:, 1].unique().tolist()) == {14}
    training, kept = known.training_and_validation(1000)
    assert set(training.images[:, 1].unique().tolist()) == {1}
    assert set(kept.images[:, 1].unique().tolist()) == {7}
    assert known.classes[test.labels[0]] == "apple"
    assert len(known.hashes()["eth80"]) == 64


@pytest.mark.parametrize(("by", "familiar", "novel"), [("azimuth", 12, 28), ("elevation", 28, 13)])
def test_viewpoints_are_divided(data: Path, by: str, familiar: int, novel: int) -> None:
    for split, objects in (("train", 2), ("test", 1)):
        kept, others = (named.images(f"eth80:{by}{suffix}", split) for suffix in ("", "-novel"))
        assert (len(kept), len(others)) == (8 * objects * familiar, 8 * objects * novel)
    if by == "elevation":
        assert set(kept.images[:, 2].unique().tolist()) == {66, 68, 90}
        assert set(others.images[:, 2].unique().tolist()) == {0, 22, 35, 45}
    else:
        assert others.images[:, 2].min() > 0


def test_the_original_names_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    write(tmp_path / "eth80", "eth80-cropped-close128/{c}{o}/{c}{o}-{e:03d}-{a:03d}.png", (1, 10), [(90, 0), (35, 45)])
    write(tmp_path / "eth80", "eth80-cropped-close128/{c}{o}/maps/{c}{o}-{e:03d}-{a:03d}-map.png", (1,), [(90, 0)])
    assert [len(named.images("eth80", split)) for split in ("train", "test")] == [16, 16]


def test_files_that_are_not_there_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    assert not named.resolve("eth80").is_here()
    assert named.resolve("eth80").hashes() == {}
    with pytest.raises(SystemExit) as stopped:
        main(["data", "fetch", "eth80"])
    assert stopped.value.code == 2
    assert f"put its images into {tmp_path / 'eth80'}" in capsys.readouterr().err


def test_a_network_that_sizes_itself_learns_it(data: Path, tmp_path: Path) -> None:
    result = fit("cnn", "eth80:azimuth", out=tmp_path / "run", steps=2, batch=8, validation=8, quiet=True)
    assert result["images"] == 8 * 12
