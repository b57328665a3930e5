"""The report: everything that fits a run in one file, and nothing from anywhere else."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from html_tags import Tags
from PIL import Image

from torchcaps.core.errors import UserError
from torchcaps.training.config import defaults_for
from torchcaps.training.train import train
from torchcaps.viz.figures.style import THEMES, style, to_png
from torchcaps.viz.report import write_report
from torchcaps.viz.report.page import Picture, Table, page, wilson
from torchcaps.viz.report.sections import Section, read_run, sections

TINY = {"channels": 16, "primary_types": 2, "decoder": (16,)}
# A few steps more than it takes to log twice.
SHORT = {"epochs": 0.1, "batch": 8, "validation": 100, "test_pairs": 1000}


def make_run(out: Path, model: str, data: str, **overrides: Any) -> Path:
    train(defaults_for(model, data=data, **SHORT), out, overrides)
    return out


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "pairs"
    write_report(make_run(out, "capsnet-multimnist-small", "multimnist-mini", **TINY))
    return out


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "digits"
    write_report(make_run(out, "capsnet-mnist-small", "mnist-mini", **TINY))
    return out


def drawn(run: Path) -> set[str]:
    return {path.name for path in (run / "figures").iterdir()}


def test_a_run_of_pairs_gets_every_picture(pairs: Path) -> None:
    names = {"breakdown", "capsule-lengths", "class-rates", "example-pairs", "perturbations", "segmentation"}
    names |= {"separation", "training-curves"}
    assert drawn(pairs) == {f"{name}.png" for name in names} | {"learning.gif"}
    for path in (pairs / "figures").iterdir():
        Image.open(path).verify()
        assert path.stat().st_size < (600_000 if path.suffix == ".gif" else 350_000)


def test_a_run_of_single_digits_gets_its_own(digits: Path) -> None:
    names = {"capsule-lengths", "confusion", "perturbations", "reconstructions", "reliability", "training-curves"}
    assert drawn(digits) == {f"{name}.png" for name in names | {"worst-mistakes"}} | {"learning.gif"}


def test_single_digits_are_taken_apart_class_by_class(digits: Path) -> None:
    text = (digits / "report.html").read_text()
    words = Tags(text).words
    table = text[text.index("Precision and recall of each class") :].split("</table>")[0]
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr><td>.*?</tr>", table)]
    assert sorted(row[0] for row in rows) == list("0123456789")
    assert sum(int(row[4]) for row in rows) == 1000
    f1 = [float(row[3].rstrip("%")) for row in rows]
    assert f1 == sorted(f1)
    assert "expected calibration error" in words
    assert "Lengths are not probabilities" in words


def test_without_a_decoder_only_what_applies(tmp_path: Path) -> None:
    capsules = make_run(tmp_path / "capsules", "capsnet-mnist-small", "mnist-mini", **{**TINY, "decoder": None})
    cnn = make_run(tmp_path / "cnn", "cnn-mnist", "mnist-mini", design="compact")
    expected = {"capsule-lengths", "confusion", "reliability", "training-curves", "worst-mistakes"}
    for run in (capsules, cnn):
        parts = list(sections(read_run(run)))
        chosen = [part for part in parts if isinstance(part, Section)]
        assert {section.name for section in chosen} == expected
        assert [part.title for part in parts if isinstance(part, Table)] == ["Precision and recall of each class"]
        assert ("class capsule" in chosen[0].about) == (run == capsules)


def test_dollar_signs_in_names_are_no_formulas(digits: Path) -> None:
    run = replace(read_run(digits), classes=("$", "$$", "$$$", *"3456789"))
    for part in sections(run):
        if isinstance(part, Section) and callable(part.content):
            with style():
                to_png(part.content())


def test_the_page_is_one_file_that_asks_for_no_other(pairs: Path) -> None:
    text = (pairs / "report.html").read_text()
    page = Tags(text)
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    addresses = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert len(addresses) == 2 * len(drawn(pairs))
    assert all(address and address.startswith("data:image/") for address in addresses)
    assert "url(" not in text
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")


def test_the_page_says_what_the_run_found(pairs: Path) -> None:
    result = json.loads((pairs / "result.json").read_text())
    words = Tags((pairs / "report.html").read_text()).words
    headline, rest = words.split("of 1,000 test images with both digits right", 1)
    assert f"{100 * result['accuracy']:.2f}" in headline
    for value in (f"{result['parameters']:,}", f"{result['reconstruction_mse']:.4f}", result["weights_sha256"]):
        assert value in rest
    for title in ("Configuration", "Manifest"):
        assert title in rest


def test_figures_and_page_have_the_same_ground(digits: Path) -> None:
    text = (digits / "report.html").read_text()
    for theme in THEMES.values():
        assert f"--ground: {theme['figure.facecolor']}" in text


def test_a_report_can_be_written_again(digits: Path) -> None:
    before = (digits / "report.html").read_bytes()
    assert write_report(digits).read_bytes() == before


RESULT = {
    "model": "capsnet-multimnist-small",
    "data": "multimnist-iou80",
    "accuracy": 0.9,
    "images": 10_000,
    "at_least_one": 0.99,
    "per_digit": 0.95,
    "reconstruction_mse": 0.02,
    "seconds": 390.6,
    "images_seen": 1,
    "parameters": 1_500_000,
    "seed": 0,
}


def test_whatever_a_run_says_is_text() -> None:
    hostile = "</code></pre><script>alert(1)</script><img src=https://example.org/x.png onerror=alert(1)>&amp;\"'"
    manifest = {"command": f"torchcaps {hostile}", "machine": {"processor": hostile, "threads": 2}}
    result, picture = {**RESULT, "model": hostile}, Picture(hostile, hostile, {"light": b""})
    found = Tags(page(result, manifest, [picture], {hostile: hostile}))
    plain = Tags(page(RESULT, {**manifest, "command": "a b"}, [Picture("", "", {"light": b""})], {"": ""}))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    assert found.words.count(hostile) == 8
    assert all(not attributes.get("src", "").startswith("https:") for _, attributes in found.tags)  # pyright: ignore


def test_a_long_table_is_folded() -> None:
    rows = [(f"class {n}", "1") for n in range(100)]
    found = Tags(page(RESULT, {}, [Table("Classes", "All of them.", ("", "images"), rows)], {}))
    assert "75 more" in found.words
    assert found.words.count("class ") == 100
    assert [tag for tag, _ in found.tags].count("details") == 1


def test_the_published_reproduction_stands_beside_the_run() -> None:
    words = Tags(page(RESULT, {}, [], {})).words
    for value in ("48.60\u202f%", "0.0360", "395\u202fs", "90.00\u202f%", "0.0200", "391\u202fs"):
        assert value in words
    assert "48.60" not in Tags(page({**RESULT, "data": "multimnist"}, {}, [], {})).words


def test_wilson_interval() -> None:
    # Newcombe 1998, Statistics in Medicine 17, table I: 81 of 263.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(1.0, 10_000)[1] == pytest.approx(1.0)


def test_a_run_that_is_not_finished_or_damaged_is_refused(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_report(tmp_path / "nothing")
    run = tmp_path / "damaged"
    shutil.copytree(digits, run)
    (run / "report.html").unlink()
    (run / "frames.safetensors").write_bytes(b"\x08")
    with pytest.raises(UserError, match=r"frames\.safetensors"):
        write_report(run)
    (run / "result.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        write_report(run)
    assert not (run / "report.html").exists()
