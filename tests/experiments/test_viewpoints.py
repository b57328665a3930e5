"""Errors at novel viewpoints are compared where the familiar ones are equal, along the whole training."""

from pathlib import Path

import pytest

from torchcaps.experiments import viewpoints
from torchcaps.experiments.base import Study
from torchcaps.experiments.looks import Look, novel_at
from torchcaps.experiments.viewpoints import matched


def test_the_plan_pairs_networks_on_familiar_viewpoints() -> None:
    trials = viewpoints.plan(Study("viewpoints", "paper"))
    assert {(trial.model, trial.data) for trial in trials} == {
        (model, f"smallnorb:{by}")
        for model in ("matrix-smallnorb", "cnn-smallnorb", "cnn-smallnorb-norm")
        for by in ("azimuth", "elevation")
    }
    assert len(trials) == 3 * 5 * 2
    assert len({trial.config.steps for trial in trials}) == 1


def test_curves_are_read_where_both_are_equally_good() -> None:
    """The second network becomes better at familiar viewpoints; it is asked where it was as good as the first."""
    first = [Look(0.8, 0.9), Look(0.4, 0.5), Look(0.2, 0.3)]
    second = [Look(0.8, 0.9), Look(0.3, 0.6), Look(0.1, 0.2)]
    ours, theirs = matched([first], [second])
    assert ours == [pytest.approx(0.3)]
    assert theirs == [pytest.approx(0.4)]
    assert matched([second], [first]) == ([theirs[0]], [ours[0]])
    assert novel_at(first, 0.9) == 0.9
    with pytest.raises(ValueError, match="never came down"):
        novel_at(first, 0.1)


def test_every_training_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewpoints, "PUBLISHED", {"azimuth": viewpoints.PUBLISHED["azimuth"]})
    monkeypatch.setattr("torchcaps.training.loop.LOG_EVERY", 2)
    study = Study("viewpoints", "smoke", root=tmp_path)
    verdicts = viewpoints.run(study)
    assert len(verdicts) == 3 + 2
    assert all(verdict.word == "undecided" for verdict in verdicts[3:]), "one seed decides nothing"
    assert study.used_figures == ["mnist-mini-azimuth"]
    for trial in viewpoints.plan(study)[:3]:
        rows = study.metrics(trial)
        assert all(0 <= row[part] <= 1 for row in rows for part in ("familiar", "novel"))
