"""The CNN stops where the capsules are; novel viewpoints are asked about once both are trained."""

from pathlib import Path

import pytest

from torchcaps.core.files import read_json
from torchcaps.experiments import viewpoints
from torchcaps.experiments.base import Study


def test_the_plan_pairs_networks_on_familiar_viewpoints() -> None:
    trials = viewpoints.plan(Study("viewpoints", "paper"))
    assert [(trial.model, trial.data) for trial in trials[:2]] == [
        ("matrix-smallnorb", "smallnorb:azimuth"),
        ("cnn-smallnorb", "smallnorb:azimuth"),
    ]
    assert {trial.data for trial in trials} == {"smallnorb:azimuth", "smallnorb:elevation"}
    assert len(trials) == 2 * 3 * 2


def test_both_are_equally_good_at_what_is_familiar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewpoints, "PUBLISHED", {"azimuth": viewpoints.PUBLISHED["azimuth"]})
    study = Study("viewpoints", "smoke", root=tmp_path)
    verdicts = viewpoints.run(study)
    kept, novel = (read_json(study.work / f"rows/azimuth-capsules-0-{part}.json") for part in ("validation", "novel"))
    assert kept["values"]["images"] == 20
    assert novel["values"]["images"] == 100
    cnn = read_json(study.work / "trials/azimuth-cnn-0/trial.json")
    assert cnn["training"]["stop_at"] == kept["values"]["accuracy"]
    error = {verdict.claim: verdict.ours or 0.0 for verdict in verdicts}
    assert error["capsules, error at novel azimuths"] == 1 - novel["values"]["accuracy"]
    growth = {
        kind: error[f"{kind}, error at novel azimuths"] - error[f"{kind}, error at familiar azimuths"]
        for kind in ("capsules", "CNN")
    }
    assert verdicts[-1].ours == pytest.approx(growth["CNN"] - growth["capsules"])
    assert verdicts[-1].holds is None
    assert len(verdicts) == 5
    assert study.used_figures == ["viewpoints"]


@pytest.mark.parametrize(("cnn", "holds"), [(0.20, True), (0.30, None)])
def test_growth_decides_nothing_where_they_were_unequal_from_the_start(
    cnn: float, holds: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = (0.0, 0.01, -0.01)
    familiar = {"capsules": [0.2 + d for d in spread], "CNN": [cnn + 2 * d for d in spread]}
    novel = {"capsules": [0.3 + d for d in spread], "CNN": [cnn + 0.2 + 2 * d for d in spread]}
    monkeypatch.setattr(viewpoints, "_measure", lambda *_: (familiar, novel, 0))
    monkeypatch.setattr(viewpoints, "PUBLISHED", {"azimuth": viewpoints.PUBLISHED["azimuth"]})
    verdict = viewpoints.run(Study("viewpoints", "smoke", root=tmp_path))[-1]
    assert verdict.ours == pytest.approx(0.1)
    assert verdict.holds is holds
    assert ("not equally good" in verdict.note) is (holds is None)
