"""The benchmarks compare like with like."""

import pytest
import torch

from torchcaps.app.bench import run
from torchcaps.app.twins import CASES, stored_votes_routing, training
from torchcaps.core.errors import UserError
from torchcaps.core.functional import votes
from torchcaps.core.types import Capsules, capsules_of
from torchcaps.nn.dense import DenseCaps
from torchcaps.routing import Dynamic, VoteShape


def test_the_plain_twin_is_the_same_mathematics() -> None:
    poses, weight = torch.randn(3, 9, 4, dtype=torch.double), torch.randn(9, 5, 6, 4, dtype=torch.double)
    expected = Dynamic(VoteShape(9, 5, 6))(votes(poses, weight), capsules_of(poses)).poses
    torch.testing.assert_close(stored_votes_routing(poses, weight), expected, rtol=1e-10, atol=1e-12)


def test_both_twins_take_the_same_training_step() -> None:
    (plain, _), (ours, _) = (training("capsnet-mnist-small", 4, twin)() for twin in ("plain", "ours"))  # pyright: ignore
    assert plain["total"].item() == pytest.approx(ours["total"].item(), rel=1e-4)


def test_a_row_has_what_the_table_needs() -> None:
    (row,) = run(["routing 1152 children"], repeats=2, batch=8, threads=1, compiled=False)
    assert row["ratio"] == pytest.approx(row["plain_ms"] / row["ours_ms"], rel=1e-2)
    assert row["best_ratio"] == row["ratio"]
    assert row["plain_spread_ms"][0] <= row["plain_ms"] <= row["plain_spread_ms"][1]
    assert 0 < row["ours_mb"] < row["plain_mb"]
    assert row["repeats"] == 2


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="routing 3200 children"):
        run(["rooting"])
    with pytest.raises(UserError, match="at least 1"):
        run(list(CASES)[:1], repeats=0)


def test_the_layer_without_kernels_is_the_twin_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, poses = DenseCaps(9, 4, 5, 6), torch.randn(3, 9, 4)
    monkeypatch.setenv("TORCHCAPS_KERNELS", "plain")
    twin = stored_votes_routing(poses, layer.weight)
    torch.testing.assert_close(layer(Capsules(poses, poses.norm(dim=-1))).poses, twin)


@pytest.mark.slow
def test_the_better_of_both_twins_counts() -> None:
    (row,) = run(["routing 1152 children"], repeats=2, batch=8, threads=1)
    assert row["best_ratio"] == pytest.approx(min(row["plain_ms"], row["compiled_ms"]) / row["ours_ms"], rel=1e-2)
