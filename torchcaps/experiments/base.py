"""What an experiment is: a module with

    PAPER = "Sabour, Frosst and Hinton 2017, Table 1"     what is reproduced
    CUT = "the small networks, 200 steps a training"      what the quick preset cuts, said with its results
    def plan(study) -> list[Trial]                        the trainings it needs, in order; may be empty
    def run(study) -> list[Verdict]                       trains, measures, draws, judges

and one line in the table of `experiments/__init__.py`. A `Study` is one such run under one preset: `quick` is the same
experiment cut to minutes on two cores, `paper` the published protocol, `smoke` seconds on the digits inside the package
to see that everything runs. Whatever is finished is kept under `runs/reproduce/NAME-PRESET/` and not repeated; the
outcome is published to `results/NAME/PRESET/` at the end, whole or not at all.

    def plan(study):
        return [Trial(f"capsnet-{seed}", "capsnet-mnist-small", "mnist", seed, training={"steps": 200})
                for seed in study.seeds]

    def run(study):
        errors = [1 - result["accuracy"] for result in study.train_all(plan(study))]
        return [judged("CapsNet, MNIST error", errors, paper=0.0025, at_most=True)]
"""

import csv
import io
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from matplotlib.figure import Figure
from PIL import Image

from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json, write_bytes, write_json
from torchcaps.data import resolve
from torchcaps.kernels.workspace import keep_freed_memory
from torchcaps.models.config import Model
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import configure, create_model
from torchcaps.training.config import TrainConfig, defaults_for
from torchcaps.training.fit import fit
from torchcaps.training.loop import Probe
from torchcaps.training.runs import Rows, load_run, manifest
from torchcaps.viz.figures.style import to_png

Preset = Literal["quick", "paper", "smoke"]
T = TypeVar("T")
LARGEST_FIGURE = 300_000
TRIALS = 2


class NotRun(UserError):
    """An experiment cannot be run here, for a reason that goes into the results."""


@dataclass(frozen=True)
class Trial:
    """One training: what `torchcaps train` would be given. `training` are fields of `TrainConfig`."""

    name: str
    model: str
    data: str
    seed: int = 0
    overrides: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> TrainConfig:
        return defaults_for(self.model, data=self.data, seed=self.seed, **self.training)

    def resolved(self) -> dict[str, Any]:
        """With every default filled in: a network or a training that has changed since counts as another trial."""
        network = asdict(configure(self.model, **self.overrides))
        return _plain({**asdict(self), "network": network, "config": asdict(self.config)})


@dataclass(frozen=True)
class Verdict:
    """A claim, the paper's number and ours; `holds` is None where the numbers do not decide."""

    claim: str
    paper: float | None
    ours: float | None
    spread: float | None
    seeds: int
    holds: bool | None
    note: str = ""
    unit: Literal["%", ""] = "%"
    measured: bool = False
    """Only a number: nothing is claimed about it."""

    @property
    def word(self) -> str:
        if self.measured:
            return "measured"
        return {True: "holds", False: "does not hold", None: "undecided"}[self.holds]


@dataclass(frozen=True)
class Study:
    """One run of an experiment under one preset; `root` holds `runs/` and `results/`."""

    name: str
    preset: Preset
    trials: int | None = None
    root: Path = Path()
    jobs: int = 1
    """Trainings at a time, in processes of their own that share out the cores."""
    used_rows: list[str] = field(default_factory=list)
    used_figures: list[str] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.root / "runs" / "reproduce" / f"{self.name}-{self.preset}"

    @property
    def folder(self) -> Path:
        """Where the outcome is published; a smoke test's stays with its runs."""
        return self.work / "results" if self.preset == "smoke" else self.root / "results" / self.name / self.preset

    @property
    def command(self) -> str:
        trials = f" --trials {self.trials}" if self.trials else ""
        jobs = f" --jobs {self.jobs}" if self.jobs > 1 else ""
        return f"torchcaps reproduce {self.name} --preset {self.preset}{trials}{jobs}"

    @property
    def seeds(self) -> range:
        """One for each trial: as many as were asked for, else `TRIALS`."""
        return self.seeds_or(TRIALS)

    def seeds_or(self, trials: int) -> range:
        return range(self.trials or (1 if self.preset == "smoke" else trials))

    def pick(self, *, quick: T, paper: T, smoke: T) -> T:
        """The value that belongs to the preset."""
        return {"quick": quick, "paper": paper, "smoke": smoke}[self.preset]

    def say(self, line: str) -> None:
        print(f"{self.name}: {line}", file=sys.stderr, flush=True)

    def data(self, name: str, stand_in: str | None = None) -> str:
        """The data set if it can be fetched, else its substitute, announced in one line; `NotRun` if there is none."""
        try:
            resolve(name).fetch()
        except UserError:
            if stand_in is None:
                raise NotRun(f"{name} cannot be fetched here, and nothing stands in for it") from None
            self.say(f"{name} cannot be fetched here; {stand_in} stands in for it, and the verdicts say so")
            return stand_in
        return name

    def run_folder(self, trial: Trial) -> Path:
        return self.work / "trials" / trial.name

    def train(self, trial: Trial, probe: Probe | None = None) -> dict[str, Any]:
        """The result of a training, which is run, resumed, or read if it is finished. Kept as a row of the results.

        What `probe` returns of the network is in each row of `metrics`.
        """
        out, wanted = self.run_folder(trial), trial.resolved()
        if (out / "trial.json").exists() and not _is_same(read_json(out / "trial.json"), wanted):
            shutil.rmtree(out)
        write_json(out / "trial.json", wanted)
        if not (out / "result.json").exists():
            self._row_path(trial.name).unlink(missing_ok=True)
            self.say(f"training {trial.name}: {trial.model} on {trial.data}, seed {trial.seed}")
        return self.row(
            trial.name,
            lambda: fit(
                trial.model,
                trial.data,
                out=out,
                seed=trial.seed,
                overrides=trial.overrides,
                probe=probe,
                **trial.training,
            ),
            seed=trial.seed,
            trial=wanted,
        )

    def train_all(self, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """The results of several trainings, `jobs` of them at a time."""
        self.at_once(self.train, trials)
        return [self.train(trial) for trial in trials]

    def at_once(self, work: Callable[[Any], Any], items: Sequence[Any]) -> None:
        """With several jobs, do the work on all items ahead, so that its rows are there when they are asked for.

        A network too small to keep several cores busy is trained sooner with one core to itself.
        """
        if self.jobs > 1:
            threads = max(1, (os.cpu_count() or 1) // self.jobs)
            with ProcessPoolExecutor(self.jobs, get_context("spawn"), _use_threads, (threads,)) as pool:
                list(pool.map(work, items))

    def model(self, trial: Trial) -> Model:
        """The trained network, ready to answer."""
        self.train(trial)
        return load_run(self.run_folder(trial))[0]

    def network(self, trial: Trial, shipped: str) -> tuple[Model, str]:
        """A network and its hash: trained in the paper's preset, else the weights that come with the package."""
        if self.preset == "paper":
            return self.model(trial), self.train(trial)["weights_sha256"]
        return create_model(shipped, pretrained=True).eval(), PRETRAINED[shipped]["sha256"]

    def metrics(self, trial: Trial) -> Rows:
        """What was logged of a finished training; a value that a step does not have is missing from its row."""
        rows = csv.DictReader((self.run_folder(trial) / "metrics.csv").read_text().splitlines())
        return [{name: float(value) for name, value in row.items() if value} for row in rows]

    def row(self, key: str, compute: Callable[[], Any], seed: int = 0, **configuration: Any) -> Any:
        """What `compute` returns (JSON), remembered under `key` as long as the configuration is the same.

        A row that depends on a trained network should have `weights=result["weights_sha256"]` in its configuration.
        """
        path, configuration = self._row_path(key), _plain(configuration)
        if key not in self.used_rows:
            self.used_rows.append(key)
        if path.exists() and (kept := read_json(path))["configuration"] == configuration:
            return kept["values"]
        began = time.perf_counter()
        values = _plain(compute())
        origin = manifest({"train": {"seed": seed}}, {})
        seconds = round(time.perf_counter() - began, 1)
        row = {"command": self.command, "preset": self.preset, "seed": seed, "seconds": seconds}
        row |= {"commit": origin["commit"], "versions": origin["versions"], "machine": origin["machine"]}
        write_json(path, {**row, "configuration": configuration, "values": values})
        return values

    def _row_path(self, key: str) -> Path:
        return self.work / "rows" / f"{key}.json"

    def figure(self, name: str, figure: Figure) -> None:
        """Keep a picture with the results; make it inside `with style():`."""
        png = _with_palette(to_png(figure))
        if len(png) > LARGEST_FIGURE:
            raise ValueError(f"{name} has {len(png):,} bytes; {LARGEST_FIGURE:,} are allowed")
        write_bytes(self.work / "figures" / f"{name}.png", png)
        self.used_figures.append(name)


def _use_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    keep_freed_memory()


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The spread is the sample's standard deviation; of one value there is none."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def judged(
    claim: str,
    values: Sequence[float],
    paper: float | None,
    at_most: bool,
    note: str = "",
    unit: Literal["%", ""] = "%",
    limit: float | None = None,
) -> Verdict:
    """Our number against the paper's: it holds if the mean reaches the paper's or misses it by the spread at most.

    `at_most` is for errors, where less is better. Where the paper has no number, the claim may name a `limit` of its
    own; without either the number is only measured.
    """
    mean, spread = mean_and_spread(values)
    wanted = paper if limit is None else limit
    if wanted is None:
        return Verdict(claim, paper, mean, spread, len(values), None, note, unit, measured=True)
    short = mean - wanted if at_most else wanted - mean
    return Verdict(claim, paper, mean, spread, len(values), short <= (spread or 0.0), note, unit)


def compared(
    claim: str,
    better: Sequence[float],
    worse: Sequence[float],
    paper: float | None,
    note: str = "",
    unit: Literal["%", ""] = "%",
) -> Verdict:
    """The claim that one score exceeds another, seed by seed: decided where the mean difference exceeds its spread."""
    gaps = [a - b for a, b in zip(better, worse, strict=True)]
    mean, spread = mean_and_spread(gaps)
    holds = None if spread is None or abs(mean) <= spread else mean > 0
    return Verdict(claim, paper, mean, spread, len(gaps), holds, note, unit)


def _with_palette(png: bytes) -> bytes:
    """The same picture in 256 colours, a third of the size."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def _is_same(before: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether two configurations agree; a new field that is None does not count as a change."""
    for part in ("network", "config"):
        if any(before.get(part, {}).get(name) != value for name, value in wanted[part].items()):
            return False
    return all(before.get(name) == wanted[name] for name in wanted if name not in ("network", "config"))


def _plain(value: Any) -> Any:
    """The value as JSON returns it: tuples become lists."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
