"""What `torchcaps doctor` says is what happens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels.conftest import new_process
from torchcaps.kernels import convolution, evidence, native, report, tuning

SHAPES: Mapping[convolution.Shape, list[str]] = {
    (4, 8, 8, 4, 3, 3, 1, 1): ["one", "two"],
    (8, 12, 12, 8, 9, 9, 2, 0): [],
    (64, 6, 6, 128, 3, 3, 1, 1): ["one"],
    (64, 16, 16, 256, 9, 9, 2, 0): ["three"],
}
KEYS = {
    "name", "batch", "training", "threads", "choice", "why", "ratio", "estimated_ms", "measured_ms", "rounds", "date",
    "models",
}  # fmt: skip


def chosen(row: dict[str, Any], shape: convolution.Shape) -> str:
    channels, height, width, outputs, kernel, _, stride, padding = shape
    conv = nn.Conv2d(channels, outputs, kernel, stride, padding)
    with torch.set_grad_enabled(row["training"]):
        return convolution.chosen(conv, torch.rand(row["batch"], channels, height, width))


def shape_of(place: int) -> convolution.Shape:
    return list(SHAPES)[place // len(report.BATCHES)]


@pytest.mark.parametrize("mode", tuning.MODES)
def test_report_says_what_a_layer_will_choose(mode: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, mode)
    rows = report.convolutions(SHAPES)
    assert len(rows) == len(SHAPES) * len(report.BATCHES)
    assert not fresh.exists(), "a report chooses nothing"
    open_rows = [row["name"] for row in rows if row["why"] == "computed cost, to be measured"]
    assert not open_rows or mode == "auto"
    found = [chosen(row, shape_of(place)) for place, row in enumerate(rows)]
    assert [row["choice"] for row in rows if row["name"] not in open_rows] == [
        twin for twin, row in zip(found, rows, strict=True) if row["name"] not in open_rows
    ]
    for later in (lambda: None, new_process):
        later()
        assert [row["choice"] for row in report.convolutions(SHAPES)] == found
    if mode != "auto":
        assert {row["why"] for row in rows} == {f"{tuning.VARIABLE}={mode}"}


def test_report_says_why(fresh: Path) -> None:
    by_name = {row["name"].split(", stride")[0]: row for row in report.convolutions(SHAPES)}
    quick = by_name["inference conv2d 1 x 64 x 6 x 6 by 128 x 3 x 3"]
    assert (quick["choice"], quick["why"]) == ("plain", "one image, few weights")
    large = by_name["inference conv2d 1 x 64 x 16 x 16 by 256 x 9 x 9"]
    assert large["why"] == "computed cost"
    training = by_name["training conv2d 16 x 64 x 6 x 6 by 128 x 3 x 3"]
    tuning.use({training["name"]: "plain"})
    (again,) = (row for row in report.convolutions(SHAPES) if row["name"] == training["name"])
    assert again["choice"] == "plain"


def test_report_measures_without_changing_what_is_chosen(fresh: Path) -> None:
    shape = (4, 8, 8, 4, 3, 3, 1, 1)
    chosen({"training": False, "batch": 16}, shape)
    before = fresh.read_text(), tuning.choices()
    computed, measured = (report.convolutions({shape: ["one"]}, measured) for measured in (False, True))
    assert [row["choice"] for row in computed] == [row["choice"] for row in measured]
    assert all(set(row) == KEYS and row["ratio"] > 0 and row["why"] and row["estimated_ms"] for row in measured)
    assert all(set(row["measured_ms"]) == set(row["estimated_ms"]) for row in measured)
    assert (fresh.read_text(), tuning.choices()) == before


def test_report_shows_other_shapes_and_is_for_people_and_programs(fresh: Path) -> None:
    chosen({"training": True, "batch": 3}, (5, 7, 7, 6, 3, 3, 1, 0))
    evidence.store("choices", {"damaged": {"choice": "plain"}, "another": 3})
    state, rows = report.state(), report.convolutions(SHAPES)
    others = report.others(rows)
    assert [row["name"].split(",")[0] for row in others] == ["training conv2d 4 x 5 x 7 x 7 by 6 x 3 x 3"]
    text = report.text(state, rows, others)
    assert "tiles.c" in text
    assert "64 x 6 x 6 by 128 x 3 x 3, padding 1" in text
    assert "one and 1 more" in text
    assert "training conv2d 4 x 5 x 7 x 7 by 6 x 3 x 3" in text
    many = report.text(state, rows, others * (report.SHOWN + 2))
    assert "and 2 more: --json" in many
    assert json.loads(json.dumps([state, rows, others])) == [state, rows, others]


def test_report_says_what_computes_routing_and_normalisation(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> dict[str, tuple[str, str]]:
        return {layer["name"]: (layer["kernel"], layer["why"]) for layer in report.layers()}

    loops = {"dynamic routing": "fused_routing", "EM routing": "em", "batch normalisation in training": "norm"}
    for name, loop in loops.items():
        there = native.library(loop) is not None
        assert kernels()[name] == ((f"{loop}.c", "") if there else ("PyTorch", native.state(loop).reason))
    monkeypatch.setenv(tuning.VARIABLE, "plain")
    if all(map(native.library, loops.values())):
        assert {kernels()[name] for name in loops} == {("PyTorch", "TORCHCAPS_KERNELS=plain")}
