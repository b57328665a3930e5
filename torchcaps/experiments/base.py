"""What an experiment is: a module with

    PAPER = "Sabour, Frosst and Hinton 2017, Table 1"     what is reproduced
    CUT = {"quick": "...", "standard": "..."}             what these presets cut, said with their results
    def plan(study) -> list[Trial]                        the trainings it needs, in order; may be empty
    def run(study) -> list[Verdict]                       trains, measures, draws, judges

and one line in the table of `experiments/__init__.py`. A `Study` is one such run under one preset:

    standard     hours of two cores: budgets in steps, five seeds, learning rates from the same small search
    quick        the same experiment cut to minutes, to try it: its claims count as not tested, unless the module has
                 `DECIDES = ("quick", ...)`
    paper        the published protocol, where there is one
    smoke        seconds on the digits inside the package, to see that everything runs

Whatever is finished is not repeated, as long as its configuration and the code that it depends on are the same. Runs
are kept under `runs/reproduce/NAME-PRESET/`; the numbers of `standard` and `paper`, which take hours, under
`results/NAME/PRESET/finished/`, a file each, so that they can be committed as they come and another machine goes on
from there. The outcome is published to `results/NAME/PRESET/` at the end, whole or not at all.

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
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch
from matplotlib.figure import Figure
from PIL import Image

from torchcaps.core.errors import UserError, argument
from torchcaps.core.files import read_json, write_bytes, write_json
from torchcaps.core.text import printable
from torchcaps.data import resolve
from torchcaps.experiments import fingerprint
from torchcaps.kernels.workspace import keep_freed_memory
from torchcaps.models.config import Model, import_path
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import configure, create_model
from torchcaps.training.config import TrainConfig, defaults_for
from torchcaps.training.fit import fit
from torchcaps.training.loop import Probe
from torchcaps.training.records import Rows
from torchcaps.training.runs import load_run, manifest
from torchcaps.viz.figures.style import to_png

Preset = Literal["quick", "standard", "paper", "smoke"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
DECIDES: tuple[Preset, ...] = ("standard", "paper")
"""The presets whose budgets can show a claim, unless a module says otherwise."""
T = TypeVar("T")
LARGEST_FIGURE = 300_000
TRIALS = {"quick": 2, "standard": 5, "paper": 5, "smoke": 1}


class NotRun(UserError):
    """An experiment cannot be run here, for a reason that goes into the results."""


@dataclass(frozen=True)
class Trial:
    """One training: what `torchcaps train` would be given. `training` are fields of `TrainConfig`.

    A routing that only an experiment has, and a loss, are given by their import path, `module:name`.
    """

    name: str
    model: str
    data: str
    seed: int = 0
    overrides: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    loss: str | None = None

    @property
    def config(self) -> TrainConfig:
        return defaults_for(self.model, data=self.data, seed=self.seed, **self.training)

    def resolved(self) -> dict[str, Any]:
        """With every default filled in: a network or a training that has changed since counts as another trial."""
        network = asdict(configure(self.model, **self.network))
        return _plain({**asdict(self), "network": network, "config": asdict(self.config)})

    @property
    def network(self) -> dict[str, Any]:
        """The overrides, with what is given by an import path."""
        path = str(self.overrides.get("routing"))
        return {**self.overrides, "routing": _imported(path)} if ":" in path else self.overrides

    @property
    def code(self) -> str:
        """Of what trains and scores it (see `fingerprint.py`)."""
        return fingerprint.of_training(self.model, self.data, self.network, self.loss)


@dataclass(frozen=True)
class Study:
    """One run of an experiment under one preset; `root` holds `runs/` and `results/`."""

    name: str
    preset: Preset
    trials: int | None = None
    root: Path = Path()
    jobs: int = 1
    """Trainings at a time, in processes of their own that share out the cores."""
    as_is: bool = False
    """Judge what is finished, also if the code has changed since, and train nothing."""
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
        return self.seeds_or(TRIALS[self.preset])

    def seeds_or(self, trials: int) -> range:
        return range(self.trials or (1 if self.preset == "smoke" else trials))

    def pick(self, *, quick: T, standard: T, paper: T, smoke: T) -> T:
        """The value that belongs to the preset."""
        return {"quick": quick, "standard": standard, "paper": paper, "smoke": smoke}[self.preset]

    def say(self, line: str) -> None:
        print(printable(f"{self.name}: {line}"), file=sys.stderr, flush=True)

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

    def train(self, trial: Trial, probe: Probe | None = None, weights: bool = False) -> dict[str, Any]:
        """The result of a training, which is run, resumed, or read if it is finished. Kept as a row of the results.

        What `probe` returns of the network is in each row of `metrics`. With `weights`, the trained network is there
        afterwards, also if another machine trained it before.
        """
        out, wanted = self.run_folder(trial), trial.resolved()
        code = self._code_of(trial, out, wanted)
        trained_here = (out / "trial.json").exists()
        if not (weights or trained_here) and (kept := self._same(trial.name, {"trial": wanted}, code)):
            self._use(trial.name)
            return kept["values"]
        if not (out / "result.json").exists():
            if self.as_is:
                raise UserError(f"{trial.name} is not finished: leave {argument('as_is')} out to train it")
            self._row_path(trial.name).unlink(missing_ok=True)
            self.say(f"training {trial.name}: {trial.model} on {trial.data}, seed {trial.seed}")
            write_json(out / "trial.json", {**wanted, "code": code})

        def learn() -> dict[str, Any]:
            loss, given = _imported(trial.loss) if trial.loss else None, {"seed": trial.seed, **trial.training}
            found = fit(trial.model, trial.data, out=out, overrides=trial.network, loss=loss, probe=probe, **given)
            write_bytes(self._metrics_path(trial), (out / "metrics.csv").read_bytes())
            return found

        return self.row(trial.name, learn, seed=trial.seed, code=code, trial=wanted)

    def _code_of(self, trial: Trial, out: Path, wanted: dict[str, Any]) -> str | None:
        """The code that trained it, or will; what was trained otherwise, or by other code, is set aside first."""
        code, kept = trial.code, read_json(out / "trial.json") if (out / "trial.json").exists() else None
        if kept is None:
            return code
        same = _is_same(kept, wanted)
        if same and (self.as_is or kept.get("code") == code):
            return kept.get("code")
        if self.as_is:
            raise UserError(f"{trial.name} was trained with another configuration: leave {argument('as_is')} out")
        aside = next(path for n in count(1) if not (path := out.with_name(f"{out.name}.before-{n}")).exists())
        changed = "the code" if same else "its configuration"
        self.say(f"{trial.name}: {changed} has changed since it was trained; that run is kept as {aside.name}")
        out.rename(aside)
        return code

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
        self.train(trial, weights=True)
        return load_run(self.run_folder(trial))[0]

    def network(self, trial: Trial, shipped: str) -> tuple[Model, str]:
        """A network and its hash: trained in the paper's preset, else the weights that come with the package."""
        if self.preset == "paper":
            return self.model(trial), self.train(trial)["weights_sha256"]
        return create_model(shipped, pretrained=True).eval(), PRETRAINED[shipped]["sha256"]

    def metrics(self, trial: Trial) -> Rows:
        """What was logged of a finished training; a value that a step does not have is missing from its row."""
        rows = csv.DictReader(self._metrics_path(trial).read_text().splitlines())
        return [{name: float(value) for name, value in row.items() if value} for row in rows]

    def row(
        self, key: str, compute: Callable[[], Any], seed: int = 0, code: str | None = "", **configuration: Any
    ) -> Any:
        """What `compute` returns (JSON), remembered under `key` as long as configuration and code are the same.

        The code is that of the experiment, unless another is named.

        A row that depends on a trained network should have `weights=result["weights_sha256"]` in its configuration.
        """
        path, configuration = self._row_path(key), _plain(configuration)
        code = fingerprint.of_measurement(self.name) if code == "" else code
        self._use(key)
        if kept := self._same(key, configuration, code):
            return kept["values"]
        began = time.perf_counter()
        values = _plain(compute())
        origin = manifest({"train": {"seed": seed}}, {})
        seconds = round(time.perf_counter() - began, 1)
        row = {"command": self.command, "preset": self.preset, "seed": seed, "seconds": seconds}
        row |= {"commit": origin["commit"], "code": code, "versions": origin["versions"], "machine": origin["machine"]}
        write_json(path, {**row, "configuration": configuration, "values": values})
        return values

    def _use(self, key: str) -> None:
        if key not in self.used_rows:
            self.used_rows.append(key)

    def kept(self, key: str) -> dict[str, Any] | None:
        """A row that is finished, here or on another machine, or published."""
        published = self.folder / "rows.json"
        if self._row_path(key).exists():
            return read_json(self._row_path(key))
        return read_json(published)["rows"].get(key) if self.lasting and published.exists() else None

    def _same(self, key: str, configuration: dict[str, Any], code: str | None) -> dict[str, Any] | None:
        kept = self.kept(key)
        same = kept and kept["configuration"] == configuration and (self.as_is or kept.get("code") == code)
        return kept if same else None

    def drop_published(self) -> None:
        """What is in `rows.json` need not be there twice."""
        for key in self.used_rows if self.lasting else ():
            self._row_path(key).unlink(missing_ok=True)

    @property
    def lasting(self) -> bool:
        """Whether what is finished is kept with the results."""
        return self.preset in ("standard", "paper")

    @property
    def finished(self) -> Path:
        return self.folder / "finished" if self.lasting else self.work / "rows"

    def _row_path(self, key: str) -> Path:
        return self.finished / f"{key}.json"

    def _metrics_path(self, trial: Trial) -> Path:
        return self.finished / f"{trial.name}.csv"

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


def _with_palette(png: bytes) -> bytes:
    """The same picture in 256 colours, a third of the size."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(png), formats=("PNG",)) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def _is_same(before: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether two configurations agree; a new field that is None does not count as a change."""
    for part in ("network", "config"):
        if any(before.get(part, {}).get(name) != value for name, value in wanted[part].items()):
            return False
    return all(before.get(name) == wanted[name] for name in wanted if name not in ("network", "config"))


def _imported(path: str) -> Any:
    """What an import path names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _plain(value: Any) -> Any:
    """The value as JSON returns it: tuples become lists, classes their import paths."""
    if isinstance(value, type):
        return import_path(value)
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
