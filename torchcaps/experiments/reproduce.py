"""Run experiments by name and publish their outcome: verdicts, rows and figures, written to `results/` at the end."""

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torchcaps.core.files import write_bytes, write_json
from torchcaps.experiments import costs, find
from torchcaps.experiments.base import DECIDES, NotRun, Preset, Study
from torchcaps.experiments.verdicts import Verdict, settled
from torchcaps.training.runs import manifest

SMOKE = "a few steps on the digits inside the package; the numbers mean nothing"


def load(name: str) -> ModuleType:
    return import_module(f"torchcaps.experiments.{find(name).module}")


def plan(name: str, preset: Preset, trials: int | None = None, root: Path = Path()) -> list[dict[str, Any]]:
    """The trainings of an experiment with what they cost, without doing any."""
    return [asdict(trial) | costs.cost(trial) for trial in load(name).plan(Study(name, preset, trials, root))]


def reproduce(
    name: str, preset: Preset, trials: int | None = None, root: Path = Path(), jobs: int = 1, as_is: bool = False
) -> dict[str, Any]:
    """Run an experiment and return its summary, as published. One that cannot run is published as such, and raises.

    With `as_is`, what is finished is judged as it is, and nothing is trained.
    """
    study, module = Study(name, preset, trials, root, jobs, as_is), load(name)
    try:
        verdicts = module.run(study)
    except NotRun as reason:
        _publish(study, module, [], str(reason))
        raise
    return _publish(study, module, verdicts, None)


def _publish(study: Study, module: ModuleType, verdicts: list[Verdict], not_run: str | None) -> dict[str, Any]:
    rows = {key: study.kept(key) or {} for key in study.used_rows}
    origin = manifest({"train": {"seed": 0}}, {})
    cut = SMOKE if study.preset == "smoke" else module.CUT.get(study.preset, "")
    decides = study.preset in getattr(module, "DECIDES", DECIDES)
    judged = settled(verdicts, "" if decides else f"{study.preset} budget: {cut}")
    summary = {
        "command": study.command,
        "experiment": study.name,
        "preset": study.preset,
        "about": find(study.name).about,
        "paper": module.PAPER,
        "cut": cut,
        "not_run": not_run,
        "verdicts": [verdict.as_json() for verdict in judged],
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
        study.drop_published()
    write_json(study.folder / "summary.json", summary)
    return summary
