"""Run experiments by name and publish their outcome: verdicts, rows and figures, written to `results/` at the end."""

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torchcaps.core.files import read_json, write_bytes, write_json
from torchcaps.experiments import find
from torchcaps.experiments.base import NotRun, Preset, Study, Verdict
from torchcaps.training.runs import manifest

SMOKE = "a few steps on the digits inside the package; the numbers mean nothing"


def load(name: str) -> ModuleType:
    return import_module(f"torchcaps.experiments.{find(name).module}")


def plan(name: str, preset: Preset, trials: int | None = None, root: Path = Path()) -> list[dict[str, Any]]:
    """The trainings of an experiment, without doing any."""
    return [asdict(trial) for trial in load(name).plan(Study(name, preset, trials, root))]


def reproduce(
    name: str, preset: Preset, trials: int | None = None, root: Path = Path(), jobs: int = 1
) -> dict[str, Any]:
    """Run an experiment and return its summary, as published. One that cannot run is published as such, and raises."""
    study, module = Study(name, preset, trials, root, jobs), load(name)
    try:
        verdicts = module.run(study)
    except NotRun as reason:
        _publish(study, module, [], str(reason))
        raise
    return _publish(study, module, verdicts, None)


def _publish(study: Study, module: ModuleType, verdicts: list[Verdict], not_run: str | None) -> dict[str, Any]:
    rows = {key: read_json(study.work / "rows" / f"{key}.json") for key in study.used_rows}
    origin = manifest({"train": {"seed": 0}}, {})
    summary = {
        "command": study.command,
        "experiment": study.name,
        "preset": study.preset,
        "about": find(study.name).about,
        "paper": module.PAPER,
        "cut": study.pick(quick=module.CUT, paper="", smoke=SMOKE),
        "not_run": not_run,
        "verdicts": [asdict(verdict) | {"verdict": verdict.word} for verdict in verdicts],
        "figures": [f"{name}.png" for name in study.used_figures],
        "seconds": round(sum(row["seconds"] for row in rows.values()), 1),
        "commit": origin["commit"],
        "versions": origin["versions"],
        "machine": origin["machine"],
    }
    for old in study.folder.glob("*.png"):
        old.unlink()
    for figure in summary["figures"]:
        write_bytes(study.folder / figure, (study.work / "figures" / figure).read_bytes())
    if rows:
        write_json(study.folder / "rows.json", {"command": study.command, "rows": rows})
    write_json(study.folder / "summary.json", summary)
    return summary
