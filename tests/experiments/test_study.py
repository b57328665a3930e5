"""A study repeats nothing that is finished, mixes no presets, and judges by numbers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from torchcaps.core.errors import UserError
from torchcaps.core.files import write_json
from torchcaps.data import sources
from torchcaps.experiments import fingerprint, search
from torchcaps.experiments.base import NotRun, Study, Trial
from torchcaps.experiments.protocols import SMOKE
from torchcaps.experiments.reproduce import reproduce
from torchcaps.models.registry import MODELS, count_parameters, create_model
from torchcaps.training.runs import load_run
from torchcaps.viz.figures import Measured, dots, style

TINY = {"channels": 16}
TRIAL = Trial("small", "cnn-mnist-small", "mnist-mini", 0, TINY, SMOKE)


def test_a_row_is_computed_once(tmp_path: Path) -> None:
    calls = []

    def compute() -> dict[str, int]:
        calls.append(1)
        return {"answer": len(calls)}

    assert Study("table1", "quick", root=tmp_path).row("a", compute, weights="x") == {"answer": 1}
    assert Study("table1", "quick", root=tmp_path).row("a", compute, weights="x") == {"answer": 1}
    assert Study("table1", "quick", root=tmp_path).row("a", compute, weights="y") == {"answer": 2}, "other weights"
    assert Study("table1", "paper", root=tmp_path).row("a", compute, weights="y") == {"answer": 3}, "another preset"
    kept = json.loads((tmp_path / "results/table1/paper/finished/a.json").read_text())
    assert {"command", "preset", "seed", "seconds", "configuration", "commit", "machine", "values"} <= set(kept)
    assert kept["command"] == "torchcaps reproduce table1 --preset paper"


def test_a_training_is_repeated_only_if_it_changed(tmp_path: Path) -> None:
    study = Study("table1", "smoke", root=tmp_path)
    result = study.train(TRIAL)
    weights = study.run_folder(TRIAL) / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert study.train(TRIAL) == result
    assert weights.stat().st_mtime_ns == before
    changed = Trial("small", TRIAL.model, TRIAL.data, 0, TINY, {**SMOKE, "lr": 1e-3})
    assert study.train(changed)["weights_sha256"] != result["weights_sha256"]
    aside = study.run_folder(TRIAL).with_name("small.before-1")
    assert load_run(aside)[1]["train"]["lr"] != 1e-3, "what was finished is set aside, not deleted"
    assert study.metrics(changed)[-1]["step"] == result["steps"]


def test_a_network_that_changed_under_its_name_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study("table1", "smoke", root=tmp_path)
    trial, entry = replace(TRIAL, overrides={}), MODELS[TRIAL.model]
    for channels in (16, 8):
        monkeypatch.setitem(MODELS, TRIAL.model, replace(entry, config=replace(entry.config, channels=channels)))
        parameters = study.train(trial)["parameters"]
        assert parameters == count_parameters(create_model(TRIAL.model))


def test_several_trainings_share_out_the_cores(tmp_path: Path) -> None:
    trials = [Trial(f"small-{seed}", TRIAL.model, TRIAL.data, seed, TINY, SMOKE) for seed in range(2)]
    study = Study("table1", "smoke", root=tmp_path, jobs=2)
    results = study.train_all(trials)
    assert [result["seed"] for result in results] == [0, 1]
    assert results == Study("table1", "smoke", root=tmp_path).train_all(trials), "finished, so only read"
    rows = [json.loads((study.work / "rows" / f"{trial.name}.json").read_text()) for trial in trials]
    assert {row["machine"]["threads"] for row in rows} == {max(1, (os.cpu_count() or 1) // 2)}
    assert study.command == "torchcaps reproduce table1 --preset smoke --jobs 2"
    assert study.used_rows == ["small-0", "small-1"]


def test_killed_and_started_again_repeats_no_finished_trial(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchcaps", "reproduce", "table1", "--preset", "smoke"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    rows = tmp_path / "runs/reproduce/table1-smoke/rows"

    def run_until(count: int) -> str:
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=log, stdout=subprocess.DEVNULL)
            while len(list(rows.glob("*.json"))) < count:
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
        return (tmp_path / "log").read_text()

    first = run_until(1)
    assert "training mnist-cnn-0" in first
    finished = {path: path.read_bytes() for path in rows.glob("*.json")}
    second = run_until(len(finished) + 1)
    for path, content in finished.items():
        assert f"training {path.stem}:" not in second
        assert path.read_bytes() == content
    assert not (tmp_path / "results").exists(), "nothing is published before the end"


def test_another_code_trains_again_and_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study("table1", "smoke", root=tmp_path)
    before = study.train(TRIAL)
    folder = study.run_folder(TRIAL)
    monkeypatch.setattr(fingerprint, "of_training", lambda *_: "other")
    as_is = replace(study, as_is=True, used_rows=[])
    assert as_is.train(TRIAL) == before
    assert not (folder.parent / "small.before-1").exists()
    assert study.train(TRIAL)["weights_sha256"] == before["weights_sha256"], "trained anew, from the same seed"
    assert (folder.parent / "small.before-1" / "result.json").exists()
    assert "the code has changed since it was trained; that run is kept as small.before-1" in capsys.readouterr().err
    assert json.loads((study.work / "rows" / "small.json").read_text())["code"] == "other"
    with pytest.raises(UserError, match="small-2 is not finished"):
        as_is.train(replace(TRIAL, name="small-2"))


def test_another_machine_goes_on_from_what_is_committed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, elsewhere = (Study("table1", "standard", root=tmp_path / name) for name in ("here", "elsewhere"))
    found = study.train(TRIAL)
    shutil.copytree(study.folder, elsewhere.folder)
    capsys.readouterr()
    assert elsewhere.train(TRIAL) == found
    assert elsewhere.metrics(TRIAL) == study.metrics(TRIAL)
    assert elsewhere.used_rows == [TRIAL.name]
    assert "training" not in capsys.readouterr().err
    elsewhere.model(TRIAL)
    assert "training small" in capsys.readouterr().err, "the network itself is not committed"
    write_json(study.folder / "rows.json", {"rows": {TRIAL.name: study.kept(TRIAL.name)}})
    study.drop_published()
    assert [path.name for path in study.finished.iterdir()] == ["small.csv"]
    assert study.train(TRIAL) == found


def test_the_best_of_a_search_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rate is absurd, so that its training comes to no end; the other two are short."""
    monkeypatch.setattr(search, "FACTORS", (1e-9, 1.0, 1e9))
    monkeypatch.setattr(search, "FEWEST_STEPS", 12)
    monkeypatch.setattr(search, "HELD_OUT", 100)
    study = Study("table1", "standard", root=tmp_path)
    training = {"steps": 100, "batch": 16, "per_class": 6, "optimiser": "adam", "lr": 3e-3}
    trials = [Trial(f"small-{seed}", TRIAL.model, TRIAL.data, seed, TINY, training) for seed in range(2)]
    assert [trial.name for trial in search.planned(study, {"a": trials})][3:] == ["small-0", "small-1"]
    tuned = search.tuned(study, {"a": trials})["a"]
    assert [trial.training["lr"] for trial in tuned] == [3e-3, 3e-3]
    assert [trial.seed for trial in tuned] == [0, 1]
    assert {key.removeprefix("search-small-") for key in study.used_rows} >= {"0.003-held-out", "3e+06-held-out"}


def test_curves_are_compared_at_the_rate_that_is_best_on_average(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each network alone would take another rate than the one that both can live with."""
    right = {"one-0.001": 0.9, "one-0.003": 0.8, "one-0.009": 0.1, "two-0.001": 0.2, "two-0.003": 0.8, "two-0.009": 0.9}
    monkeypatch.setattr(search, "_held_out_accuracy", lambda _, trial: right[trial.name.removeprefix("search-")])
    training = {"steps": 100, "lr": 3e-3}
    groups = {
        name: [Trial(f"{name}-{seed}", TRIAL.model, TRIAL.data, seed, TINY, training) for seed in range(2)]
        for name in ("one", "two")
    }
    alone = search.tuned(Study("figA2", "standard", root=tmp_path), groups)
    assert [trial.training["lr"] for trials in alone.values() for trial in trials] == [1e-3, 1e-3, 9e-3, 9e-3]
    alike = search.tuned_alike(Study("figA2", "standard", root=tmp_path), groups)
    assert [trial.training["lr"] for trials in alike.values() for trial in trials] == [3e-3] * 4
    assert search.tuned_alike(Study("figA2", "quick", root=tmp_path), groups) == groups


RUN = ("figA1", "fig4", "fig5", "crowding", "overlap-controls", "seed003", "parse-tree")
NEWER = ("affnist", "ablations", "explaining-away", "few-dimensions")


@pytest.mark.parametrize("name", [*RUN, *NEWER])
def test_from_data_to_verdict(name: str, tmp_path: Path) -> None:
    summary = reproduce(name, "smoke", root=tmp_path)
    folder = Study(name, "smoke", root=tmp_path).folder
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert summary["verdicts"]
    for verdict in summary["verdicts"]:
        assert verdict["verdict"] in ("not tested", "measured"), "a smoke test decides nothing"
    assert summary["figures"]
    for figure in summary["figures"]:
        assert 1_000 < (folder / figure).stat().st_size <= 300_000
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert rows
    assert all(row["preset"] == "smoke" for row in rows.values())


def test_what_cannot_be_fetched_is_said_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "empty"))
    with sources.offline(), pytest.raises(NotRun, match="svhn cannot be fetched here, and nothing stands in"):
        reproduce("svhn", "quick", root=tmp_path)
    summary = json.loads((tmp_path / "results/svhn/quick/summary.json").read_text())
    assert "svhn" in summary["not_run"]
    assert str(tmp_path) not in json.dumps(summary), "no path of this machine"
    assert summary["verdicts"] == []
    with sources.offline():
        assert Study("affnist", "quick", root=tmp_path).data("affnist", stand_in="affnist-style") == "affnist-style"


def test_figures_stay_small(tmp_path: Path) -> None:
    study = Study("table1", "quick", root=tmp_path)
    with style():
        study.figure("fine", dots({"a": [Measured("x", [0.1, 0.2], 0.15)]}, "error"))
        noise = Figure(figsize=(5, 5))
        noise.add_axes((0, 0, 1, 1)).imshow([[hash((x, y)) % 97 for x in range(600)] for y in range(600)])
        with pytest.raises(ValueError, match="bytes"):
            study.figure("large", noise)
    assert study.used_figures == ["fine"]
