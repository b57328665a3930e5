"""The rendered toys: exact distances, pictures that obey camera and lamps, files that smallNORB's reader reads."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from torchcaps import data as named
from torchcaps.data import sources, viewpoints
from torchcaps.data.readers import norb
from torchcaps.data.sources.catalogue import FILES, FileSpec, Source, member
from torchcaps.data.synthetic import norb_style
from torchcaps.data.synthetic.norb_style import SIDE, Scenes, making
from torchcaps.data.synthetic.norb_style.making import TOYS, Arrays, make
from torchcaps.data.synthetic.norb_style.render import LIGHTINGS, camera, render, trace
from torchcaps.data.synthetic.norb_style.solids import (
    Solid,
    blended,
    box,
    cylinder,
    ellipsoid,
    joined,
    limb,
    mirrored,
    moved,
    prism,
    sphere,
    turned,
    without,
)
from torchcaps.data.synthetic.norb_style.volume import CELL, Volume, voxels

FEW = Scenes((4,), elevations=(0, 2, 5), azimuths=(0, 4, 10, 32), lightings=(1, 5))
CUBE = box((0, 0, 0), (1, 1, 1), rounding=0.0)


def at(*points: tuple[float, float, float]) -> Tensor:
    return torch.tensor(points, dtype=torch.float32)


@pytest.mark.parametrize(
    ("solid", "point", "distance"),
    [
        (CUBE, (3, 0, 0), 2),
        (CUBE, (0.5, 0, 0), -0.5),
        (CUBE, (2, 2, 0), 2**0.5),
        (box((0, 0, 0), (1, 1, 1), rounding=0.3), (0, 0, 2), 1),
        (sphere((1, 2, 3), 0.5), (1, 2, 5), 1.5),
        (ellipsoid((0, 0, 0), (1, 1, 1)), (0, 3, 0), 2),
        (ellipsoid((0, 0, 0), (1, 2, 3)), (0, 2, 0), 0),
        (limb((0, 0, 0), (0, 0, 2), 0.5), (1.5, 0, 1), 1),
        (limb((0, 0, 0), (0, 0, 2), 0.5, 0.1), (0, 0, 3), 0.9),
        (cylinder((0, 0, 0), 1, 1.0, 0.2, rounding=0.0), (2, 0, 0), 1),
        (cylinder((0, 0, 0), 1, 1.0, 0.2, rounding=0.0), (0, 1, 0), 0.8),
        (prism([(0, 0), (2, 0), (2, 1), (0, 1)], "xz", 0.0, 0.5, rounding=0.0), (1, 0, 3), 2),
        (prism([(0, 0), (2, 0), (2, 1), (0, 1)], "xy", 0.0, 0.5, rounding=0.0), (1, 0.5, 0), -0.5),
        (joined(sphere((0, 0, 0), 1), sphere((4, 0, 0), 1)), (3.5, 0, 0), -0.5),
        (without(CUBE, sphere((1, 0, 0), 0.5)), (0.9, 0, 0), 0.4),
        (mirrored(sphere((0, 2, 0), 0.5)), (0, -2, 0), -0.5),
        (moved(CUBE, (5, 0, 0)), (5, 0, 3), 2),
        (turned(limb((0, 0, 0), (1, 0, 0), 0.1), 1, 90), (0, 0, -1), -0.1),
        (turned(limb((0, 0, 0), (1, 0, 0), 0.1), 2, 90), (0, 1, 0), -0.1),
        (turned(limb((0, 0, 0), (0, 1, 0), 0.1), 0, 90), (0, 0, 1), -0.1),
    ],
)
def test_distances(solid: Solid, point: tuple[float, float, float], distance: float) -> None:
    assert solid(at(point)).item() == pytest.approx(distance, abs=1e-5)


def test_a_concave_prism_knows_inside_from_outside() -> None:
    corner = prism([(0, 0), (2, 0), (2, 1), (1, 1), (1, 2), (0, 2)], "xy", 0.0, 1.0, rounding=0.0)
    assert (corner(at((0.5, 1.5, 0), (1.5, 0.5, 0), (0.5, 0.5, 0))) < 0).all()
    assert corner(at((1.5, 1.5, 0))).item() == pytest.approx(0.5)


def test_a_blend_fills_the_corner_and_nothing_else() -> None:
    balls = sphere((-1, 0, 0), 1), sphere((1, 0, 0), 1)
    soft, hard = blended(0.2, *balls), joined(*balls)
    assert soft(at((0, 0.1, 0))) < hard(at((0, 0.1, 0)))
    assert soft(at((1.5, 2, 0))) == hard(at((1.5, 2, 0)))


@pytest.mark.parametrize("category", TOYS)
@pytest.mark.parametrize("instance", [0, 9])
def test_distances_never_promise_too_much(category: str, instance: int) -> None:
    """A ray that steps by the distance must not jump over a surface: it changes by no more than the way gone."""
    toy = TOYS[category][instance]
    random = torch.Generator().manual_seed(0)
    points = 3 * torch.rand(4000, 3, generator=random) - 1.5
    steps = 0.02 * torch.nn.functional.normalize(torch.randn(4000, 3, generator=random), dim=1)
    slopes = (toy(points + steps) - toy(points)).abs() / 0.02
    assert (slopes > 1.25).float().mean() < 0.002


@pytest.fixture(scope="module")
def ball() -> Volume:
    return voxels(sphere((0, 0, 0), 0.7))


def radius_of(ball: Volume) -> float:
    """Measured from near the surface: in the middle, where distances bend, the grid is coarse."""
    return 0.9 - ball.exact_distance(at((0.9, 0, 0)).T).item()


def test_a_volume_is_centred_and_fills_the_unit_ball(ball: Volume) -> None:
    points = at((0.5, 0, 0), (0.2, -0.1, 0.9), (0.5, 0.6, -0.7)).T
    radius = radius_of(ball)
    assert 0.9 < radius < 1
    assert ball.table == pytest.approx(-radius, abs=CELL)
    torch.testing.assert_close(ball.exact_distance(points), points.norm(dim=0) - radius, atol=0.005, rtol=0)
    torch.testing.assert_close(ball.distance(points), ball.exact_distance(points), atol=CELL, rtol=0)
    outside = at((3, 0, 0), (0, -1.5, 1.5)).T
    assert (ball.distance(outside) <= outside.norm(dim=0) - radius + CELL).all()
    direction = at((0.6, 0, 0.8)).T
    torch.testing.assert_close(ball.normal(0.9 * direction), direction, atol=0.01, rtol=0)


def test_a_volume_is_moved_and_scaled_but_not_turned() -> None:
    other = voxels(moved(sphere((0, 0, 0), 1.3), (0.3, -0.2, 1.1)))
    sides = at((0.9, 0, 0), (-0.9, 0, 0), (0, 0.9, 0), (0, -0.9, 0), (0, 0, 0.9), (0, 0, -0.9)).T
    assert other.exact_distance(sides).abs().max() < 0.12
    slab = voxels(box((0.2, 0.1, 0), (0.9, 0.4, 0.2)))
    inside = at((0.7, 0, 0), (0, 0.7, 0), (0, 0, 0.7)).T
    assert (slab.exact_distance(inside) < 0).tolist() == [True, False, False]


def test_rays_meet_a_ball_where_geometry_says(ball: Volume) -> None:
    radius = radius_of(ball)
    place, directions = camera(30.0, 40.0, 64)
    origins = place[:, None].expand_as(directions)
    points, which = trace(ball, origins, directions)
    middle = -(origins * directions).sum(0)
    chord = radius**2 - origins.square().sum(0) + middle.square()
    exact = origins + directions * (middle - chord.clamp(min=0).sqrt())
    clear = chord[which] > 0.05
    torch.testing.assert_close(points[:, clear], exact[:, which[clear]], atol=0.01, rtol=0)
    hit = torch.zeros_like(chord, dtype=torch.bool).index_fill(0, which, True)
    assert hit[chord > 0.05].all()
    assert not hit[chord < -0.05].any()


def test_both_cameras_look_at_the_middle_of_the_toy() -> None:
    for azimuth, elevation in ((0.0, 30.0), (125.35, 70.0)):
        place, directions = camera(azimuth, elevation, 2)
        torch.testing.assert_close(directions.mean(1) / directions.mean(1).norm(), -place / 5)
        assert (directions[2] < 0).all()
        torch.testing.assert_close(directions.norm(dim=0), torch.ones(4))


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    """A slab that is long from front to back, on the left of which stands a tower."""
    toy = joined(box((0, 0, 0.2), (1.0, 0.3, 0.2)), box((0, 0.2, 0.6), (0.1, 0.1, 0.6)))
    return render(voxels(toy), [30, 70], [0, 90, 180], range(len(LIGHTINGS))).float()


def test_pictures_have_the_axes_they_promise(pictures: Tensor) -> None:
    assert pictures.shape == (2, 3, 6, 2, SIDE, SIDE)
    assert pictures.min() > 10
    assert pictures.max() < 256


def outline(picture: Tensor) -> Tensor:
    """What is darker than the table, whose brightness the corners have."""
    return picture < picture[..., :1, :1] - 25


def test_the_toy_turns_with_the_azimuth(pictures: Tensor) -> None:
    seen = outline(pictures[1, :, 2, 0])
    width, height = seen.any(1).sum(1), seen.any(2).sum(1)
    assert height[0] > 1.3 * width[0]
    assert width[1] > 1.3 * height[1]
    front, back = pictures[0, 0, 3].mean(0), pictures[0, 2, 3].mean(0)
    assert (front - back.flip(1)).abs().mean() < (front - back).abs().mean()


def test_the_eyes_see_two_pictures_of_one_thing(pictures: Tensor) -> None:
    left, right = pictures[:, :, :, 0], pictures[:, :, :, 1]
    assert (left != right).flatten(3).any(3).all()
    assert (left - right).abs().mean() < (left[:, 0] - left[:, 1]).abs().mean()


def test_a_lamp_on_the_one_side_throws_its_shadow_to_the_other(pictures: Tensor) -> None:
    one, other = pictures[0, 0, 0].mean(0), pictures[0, 0, 1].mean(0)
    shaded = (one / one[0, 0] - other / other[0, 0])[30:44]
    columns = torch.arange(SIDE).float()
    darker_under_one = (columns * (-shaded).clamp(min=0.05).sub(0.05)).sum() / (-shaded).clamp(min=0.05).sub(0.05).sum()
    darker_under_other = (columns * shaded.clamp(min=0.05).sub(0.05)).sum() / shaded.clamp(min=0.05).sub(0.05).sum()
    assert abs(darker_under_one - darker_under_other) > 4


def test_every_lighting_is_another(pictures: Tensor) -> None:
    flat = pictures[0, 1].flatten(1)
    differences = torch.cdist(flat, flat) + 1e9 * torch.eye(6)
    assert differences.min() > 100


@pytest.mark.parametrize("category", TOYS)
def test_toys_of_a_category_differ(category: str) -> None:
    """Ten of them, and no two fill the same space, each scaled to the size of the other."""
    lattice = torch.cartesian_prod(*[torch.linspace(-2.6, 2.6, 40)] * 3)
    filled = []
    for toy in TOYS[category]:
        inside = lattice[toy(lattice) < 0.07]
        centre = (inside.amin(0) + inside.amax(0)) / 2
        size = (inside - centre).norm(dim=1).max()
        fine = torch.cartesian_prod(*[torch.linspace(-1, 1, 24)] * 3)
        filled.append(toy(fine * size + centre) < 0)
    toys = torch.stack(filled)
    overlap = (toys[:, None] & toys).sum(2) / (toys[:, None] | toys).sum(2)
    assert len(toys) == 10
    assert overlap.fill_diagonal_(0).max() < 0.9


@pytest.fixture(scope="module")
def few() -> Arrays:
    return make(FEW)


def test_arrays_have_the_layout_of_smallnorb(few: Arrays) -> None:
    dat, cat, info = few
    assert dat.shape == (3 * 4 * 2 * 5, 2, SIDE, SIDE)
    assert (dat.dtype, cat.dtype, info.dtype) == (np.uint8, np.int32, np.int32)
    assert cat.tolist() == [0, 1, 2, 3, 4] * 24
    assert info[0].tolist() == [4, 0, 0, 1]
    assert info[5].tolist() == [4, 0, 0, 5]
    assert info[-1].tolist() == [4, 5, 32, 5]
    assert len(np.unique(np.column_stack([info, cat]), axis=0)) == 120


def test_every_toy_is_in_the_middle_and_large_enough(few: Arrays) -> None:
    seen = outline(torch.from_numpy(few.dat[:, 0]).float())
    area = seen[:, 8:40, 8:40].flatten(1).sum(1)
    assert area.min() > 80
    assert area.sum() > 0.85 * seen.sum()


@pytest.fixture
def rendered(few: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """norb-style with fewer scenes, the same for training and testing, in a cache of its own."""
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    monkeypatch.setattr(making, "make", lambda scenes, show: few)
    for split in ("train", "test"):
        for part in norb_style.PARTS:
            key = f"norb-style/{split}-{part}"
            source = Source(norb_style.Rendered(FEW), partial(member, name=f"{part}.mat"))
            monkeypatch.setitem(FILES, key, FileSpec(f"{key}.mat", None, (source,), check=norb.read))
    return tmp_path


def test_the_set_is_made_at_first_use_and_then_kept(rendered: Path, few: Arrays, capsys: pytest.CaptureFixture) -> None:
    images = named.images("norb-style", "train")
    np.testing.assert_array_equal(images.images.numpy(), few.dat)
    assert "fetching norb-style/train-dat from the renderer" in capsys.readouterr().err
    assert {f"norb-style/train-{part}" for part in norb_style.PARTS} <= sources.hashes("norb-style").keys()
    assert torch.equal(named.images("norb-style", "train").images, images.images)
    assert not capsys.readouterr().err


def test_training_crops_and_jitters_and_testing_takes_the_middle(rendered: Path) -> None:
    images = named.images("norb-style", "test")
    scored = next(named.resolve("norb-style").scored(images).batches(60))
    torch.testing.assert_close(scored.images, images.images[:60, :, 8:40, 8:40] / 255)
    shown = named.resolve("norb-style").stream(images, seed=0).batch(0, 60)
    assert shown.images.shape == (60, 2, 32, 32)
    brightness = shown.images.flatten(1).median(1).values
    assert brightness.max() > 1.3 * brightness.min()


def test_crops_near_the_middle_are_tested_on_the_same_pixels(rendered: Path) -> None:
    whole, middle = (named.resolve(name) for name in ("norb-style", "norb-style-middle"))
    images = middle.images("test")
    assert images.images.shape[2:] == (38, 38)
    tested, same = (next(data.scored(data.images("test")).batches(60)).images for data in (middle, whole))
    assert torch.equal(tested, same)


def test_the_files_of_both_splits_hold_other_toys() -> None:
    train, test = (norb_style.rendered(split).scenes for split in ("train", "test"))
    assert train.instances == (4, 6, 7, 8, 9)
    assert test.instances == (0, 1, 2, 3, 5)
    for scenes in (train, test):
        assert scenes.pairs == 24_300


@pytest.mark.parametrize(
    ("by", "azimuths", "elevations"),
    [("azimuth", {0, 40, 320}, {30, 40, 55}), ("elevation", {0, 40, 100, 320}, {30, 40})],
)
def test_viewpoints_are_divided_into_familiar_and_novel(rendered: Path, by, azimuths, elevations) -> None:
    for split in ("train", "test"):
        views = viewpoints.read("norb-style", split)
        assert set(views.instance.tolist()) == {4}
        assert set(views.lighting.tolist()) == {1, 5}
        familiar, novel_ones = (viewpoints.select(views, by, familiar) for familiar in (True, False))
        assert sorted([*familiar.tolist(), *novel_ones.tolist()]) == list(range(120))
        assert set(views.azimuth[familiar].tolist()) == azimuths
        assert set(views.elevation[familiar].tolist()) == elevations
        whole = named.images("norb-style", split)
        kept, novel = (named.images(f"norb-style:{by}{suffix}", split) for suffix in ("", "-novel"))
        assert torch.equal(kept.images, whole.images[familiar])
        assert torch.equal(novel.images, whole.images[novel_ones])
        assert torch.equal(novel.labels, whole.labels[novel_ones])
        assert kept.name == f"norb-style:{by}"


def test_smallnorb_has_the_same_viewpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    info = np.array([[4, 0, 0, 0], [4, 8, 34, 5], [6, 3, 30, 1]], np.int32)
    arrays = {"dat": np.zeros((3, 2, 96, 96), np.uint8), "cat": np.array([0, 4, 1], np.int32), "info": info}
    for part, array in arrays.items():
        norb.write(tmp_path / FILES[f"smallnorb/train-{part}"].place, array)
    views = viewpoints.read("smallnorb", "train")
    assert views.elevation.tolist() == [30, 70, 45]
    assert views.azimuth.tolist() == [0, 340, 300]
    assert named.images("smallnorb:elevation", "train").labels.tolist() == [0]
    assert named.images("smallnorb:azimuth-novel", "train").labels.tolist() == []
    training, kept = named.resolve("smallnorb:azimuth").training_and_validation(10)
    assert training.labels.tolist() == [0, 4]
    assert kept.labels.tolist() == [1]
    training, kept = named.resolve("smallnorb:azimuth").training_and_validation(0)
    assert (len(training), len(kept)) == (3, 0)
