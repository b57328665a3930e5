"""What is made for the hub and the site: cards of the weights in the package, and a Space."""

import json
import re
import sys
from pathlib import Path

import cards
import pytest
import ship
import space

from torchcaps.models.pretrained import PRETRAINED

ROOT = Path(__file__).parents[1]
ROWS = "results/overlap-controls/standard/rows.json"


def test_a_card_for_each_of_the_weights_with_its_scores() -> None:
    pages = cards.pages()
    assert set(pages) == set(PRETRAINED)
    for name, text in pages.items():
        assert text.startswith(f"# {name}\n")
        assert f'create_model("{name}", pretrained=True)' in text
        for data, score in PRETRAINED[name]["scores"].items():
            assert f"| accuracy on {data} | {score['accuracy']:.2%} (" in text
        assert f"](models/{name}.md)" in cards.overview()


def test_the_table_of_weights_is_what_their_cards_say() -> None:
    assert ship.ZOO.read_text() == ship.zoo()
    sizes = [float(line.split(",")[4]) for line in ship.zoo().splitlines()[1:]]
    assert max(sizes) <= 4
    assert sum(sizes) <= 24


def test_the_control_comes_from_results() -> None:
    (name, titles), *_ = cards.CONTROLS.items()
    facts, rows = cards.facts(name), json.loads((ROOT / ROWS).read_text())["rows"]
    for network, title in titles.items():
        mean = sum(rows[f"{network}-{seed}"]["values"]["accuracy"] for seed in range(5)) / 5
        assert facts[title].startswith(f"{mean:.2%} ±")


def test_folders_for_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cards.py", str(tmp_path), "--owner", "me"])
    cards.main()
    for name in PRETRAINED:
        assert {path.name for path in (tmp_path / name).iterdir()} == {"config.json", "model.safetensors", "README.md"}
        assert f'from_pretrained("me/{name}")' in (tmp_path / name / "README.md").read_text()


def test_a_space_is_a_site_with_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["space.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="torchcaps publish"):
        space.main()
    (tmp_path / "index.html").write_text("the page")
    space.main()
    header = re.match(r"---\n(.*?)\n---\n", (tmp_path / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert header is not None
    assert {"sdk: static", "app_file: index.html"} <= set(header[1].splitlines())
