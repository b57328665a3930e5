"""The run folder: what a training leaves behind, written whole or not at all, and read back with care.

config.json          the resolved configuration          metrics.csv   a row every so many steps
manifest.json        command, commit, versions, machine   result.json   the scores, once training is done
model.safetensors    the weights                          checkpoint/   enough to go on bit for bit
data.json            of one's own images: which are trained on, watched and tested
answers.safetensors  the network's lengths for the test images, and their labels
"""

import csv
import io
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from torchcaps import __version__
from torchcaps.core.errors import UserError, argument
from torchcaps.core.files import packed, read_json, read_tensors, take_lock, write_bytes, write_json, write_tensors
from torchcaps.core.machine import processor
from torchcaps.core.progress import say
from torchcaps.core.seal import is_sealed, seal
from torchcaps.data import TEST_PAIRS, DataSet, ScoredSet, resolve
from torchcaps.data.folder import RECORD, is_record
from torchcaps.data.folder.listing import is_own
from torchcaps.data.own import record
from torchcaps.data.tensors import UNNAMED
from torchcaps.models.config import model_from_config
from torchcaps.training.config import TrainConfig
from torchcaps.training.records import Rows, checked, loaded, read_config, read_manifest, read_result, read_state

P = ParamSpec("P")
Result = TypeVar("Result")
ANSWERS = "answers.safetensors"
MOST_ANSWERS = 100_000


def write_rows(path: Path, rows: Rows) -> None:
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())


class Checkpoint:
    """The last two states of a run. Of each, a small JSON file names a large tensor file and its hash.

    Renaming the newer JSON file is the moment at which a state counts. A tensor file is named after its content: also
    at the same step, none takes the place of one that is pointed to.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoint"
        self.latest, self.previous = self.folder / "latest.json", self.folder / "previous.json"

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        content, sha256 = packed(tensors)
        path = self.folder / f"step-{state['step']}-{sha256[:12]}.safetensors"
        write_bytes(path, content)
        before = self._file(self.latest)
        if before not in (None, path.name) and (self.folder / str(before)).exists():
            write_bytes(self.previous, self.latest.read_bytes())
        write_json(self.latest, checked({"file": path.name, "sha256": sha256, **state}))
        kept = {path.name, self._file(self.previous)}
        for old in self.folder.glob("*.safetensors"):
            if old.name not in kept:
                with suppress(OSError):  # a file too many is no reason to end a training
                    old.unlink()

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest state that is whole."""
        damage: list[UserError] = []
        for pointer in (self.latest, self.previous):
            if not pointer.exists():
                continue
            try:
                state = read_state(pointer)
                tensors = read_tensors(self.folder / Path(str(state["file"])).name, state["sha256"])
            except UserError as error:
                damage.append(error)
                continue
            if damage:
                say(f"{damage[0]}; going on from step {state['step']}, the checkpoint before it")
                write_bytes(self.latest, pointer.read_bytes())
            return tensors, state
        if damage:
            raise damage[0]
        return None

    def step(self) -> int | None:
        """Of the newest state."""
        try:
            return read_state(self.latest)["step"] if self.latest.exists() else None
        except UserError:
            return None

    def _file(self, pointer: Path) -> str | None:
        """The tensor file that a pointer names, if it can be read."""
        try:
            return Path(str(read_json(pointer)["file"])).name
        except (UserError, KeyError, TypeError):
            return None


@contextmanager
def alone(run: Path) -> Iterator[None]:
    """One training in a folder at a time: another one is refused. Whoever is killed makes room.

    Of several processes of one training the first holds the folder. One that was made for nothing goes again.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    made, lock = not run.exists(), run / ".lock"
    try:
        run.mkdir(parents=True, exist_ok=True)
        file = open(lock, "ab")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write {lock}: {error.strerror or error}") from None
    try:
        with file:
            if not take_lock(file):
                raise UserError(f"another training is at work in {run}: wait for its end, or choose another folder")
            yield
    finally:
        if made and os.listdir(run) == [lock.name]:
            lock.unlink()
            run.rmdir()


def alone_in_its_folder(train: Callable[Concatenate[TrainConfig, Path, P], Result]) -> Callable[..., Result]:
    """Holds the run folder, the second argument, as long as a training lasts."""

    @wraps(train)
    def held(config: TrainConfig, out: Path, *args: P.args, **options: P.kwargs) -> Result:
        with alone(out):
            return train(config, out, *args, **options)

    return held


def load_run(path: str | Path, *, model: nn.Module | None = None, **given: Any) -> tuple[Any, dict[str, Any]]:
    """The trained model of a run folder, ready to answer, and the run's configuration.

    A network of one's own, which a file cannot describe, is handed over as `model` and gets the weights; a part of one,
    such as a `backbone` or a `routing`, is handed over by the name of its field. If it was trained on somebody's own
    images, its data is the record of them in the run, wherever that is now.
    """
    run = Path(path)
    if not run.is_dir():
        raise UserError(f"{run} is not a run folder")
    config = read_config(run)
    if not (run / "result.json").exists():
        raise UserError(f"{run} is not finished: go on with 'torchcaps train --resume --out {run}'")
    if (run / RECORD).exists():
        config["train"]["data"] = str(run / RECORD)
    network = model_from_config(config["model"], **given) if model is None else model
    load_weights(run, network, read_weights(run))
    return network.eval(), config


def read_weights(run: Path) -> dict[str, Tensor]:
    """Of a finished run."""
    return read_tensors(run / "model.safetensors", read_result(run)["weights_sha256"])


def load_weights(run: Path, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put the weights of a run into a network that is built as the run's was."""
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise UserError(f"{run} was trained with another version of this network: train it again") from None


def run_data(run: Path, config: dict[str, Any], images: str | Path | None = None) -> DataSet:
    """The data set that a run was trained on, by its configuration as `load_run` gives it.

    `images` says where the images of one's own are that it was trained on, if not where they were.
    """
    name = config["train"]["data"]
    if images is not None:
        if not (run / RECORD).exists():
            raise UserError(f"{run} was trained on {name}, not on images of one's own: leave {argument('data')} out")
        return record(run / RECORD, images)
    check_folder(run, config, name)
    try:
        return resolve(name)
    except UserError as error:
        if name.startswith(UNNAMED) or os.sep in name:
            raise UserError(f"{run}: {error}") from None
        raise UserError(f"{run} was trained on '{name}': register_data(\"{name}\", ...) first") from None


def check_folder(run: Path, config: dict[str, Any], name: str) -> None:
    """A folder that a configuration names is opened only if this user wrote it there, or if it is inside the run."""
    if name == str(run / RECORD) or not (is_record(name) or is_own(name)):
        return
    folders = config.get("folders")
    if isinstance(folders, list) and name in folders and is_sealed(json.dumps(folders), config.get("seal")):
        return
    if not os.path.realpath(name).startswith(os.path.realpath(run) + os.sep):
        raise UserError(f"{run} was not made here, so {name}, which it names, is not opened")


def seal_folders(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the folders of this machine that it names, sealed."""
    folders = [name for name in (config["train"]["data"], config["train"]["test"]) if name and is_own(name)]
    return {**config, "folders": folders, "seal": seal(json.dumps(folders))} if folders else config


def run_test_set(run: Path, config: dict[str, Any], data: DataSet, most: int | None = None) -> ScoredSet:
    """The test set that a run was scored on; of pairs at most so many, because a larger set begins with the smaller."""
    pairs, other = config["train"].get("test_pairs", TEST_PAIRS), config["train"].get("test")
    asked = run_data(run, {**config, "train": {"data": other}}) if other else data
    return asked.test(min(pairs, most or pairs))


def write_answers(run: Path, lengths: Tensor, labels: Tensor) -> str:
    """Keep what the network said about the first test images; returns the SHA-256."""
    return write_tensors(run / ANSWERS, {"lengths": lengths[:MOST_ANSWERS], "labels": labels[:MOST_ANSWERS]})


def read_answers(run: Path) -> tuple[Tensor, Tensor] | None:
    """Lengths [n j] and labels [n k] of the test images in their order, as they were scored at the end of the run.

    None where a run of an earlier version did not keep them. Of a very large test set they are the first ones.
    """
    digest = read_result(run).get("answers_sha256")
    if digest is None:
        return None
    lengths, labels = loaded(run / ANSWERS, read_tensors(run / ANSWERS, digest), ("lengths", "labels"))
    fit = lengths.ndim == labels.ndim == 2 and len(lengths) == len(labels) and 0 < labels.shape[1] <= lengths.shape[1]
    if not fit or not lengths.is_floating_point() or labels.dtype != torch.int64:
        raise UserError(f"{run / ANSWERS} is damaged: it does not hold lengths and labels")
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < lengths.shape[1]:
        raise UserError(f"{run / ANSWERS} is damaged: it has labels beyond its {lengths.shape[1]} classes")
    return lengths, labels


def change(run: Path, **given: Any) -> None:
    """Change what may change in a run that is gone on with, such as its learning rate."""
    saved = read_config(run)
    changed = {**saved["train"], **{name: value for name, value in given.items() if value is not None}}
    if changed != saved["train"]:
        write_json(run / "config.json", {**saved, "train": changed})
        keep_origin(run, {"command": _command()})


def prolong(run: Path, budget: dict[str, float | None]) -> None:
    """Give a run more time, also if it was finished: its schedule is stretched to the new end."""
    saved = read_config(run)
    before = {name: saved["train"].get(name) for name in budget}
    longer = {name: value for name, value in budget.items() if value is not None and value != before[name]}
    if not longer:
        return
    for name, value in longer.items():
        if not math.isfinite(value):
            raise UserError(f"{argument(name)} must be a number, not {value}")
        had = before[name]
        if had is None or value < had:
            reason = "was not given one" if had is None else f"has {had:g} already"
            raise UserError(f"{argument(name, f'{value:g}')} does not prolong {run}, which {reason}")
    # The old result goes first: killed in between, the run is unfinished, not finished with another budget.
    if (run / "result.json").exists():
        write_bytes(run / "result-before.json", (run / "result.json").read_bytes())
        (run / "result.json").unlink()
    write_json(run / "config.json", {**saved, "train": {**saved["train"], **longer}})
    keep_origin(run, {"command": _command()})


def check_same(run: Path, part: str, now: dict[str, Any]) -> None:
    """What a run was begun with is what it is gone on with; what an older version did not know of is left aside."""
    if not (run / "config.json").exists():
        return
    before, now = read_config(run)[part], json.loads(json.dumps(now))
    for name, value in before.items():
        if name in now and now[name] != value:
            said = f"{name.replace('_', ' ')} {value}, not {now[name]}"
            raise UserError(f"{run} holds a run with {said}: choose another folder, or remove it")


def keep_origin(run: Path, origin: dict[str, Any]) -> None:
    """A run comes from the command that began it; those that went on with it are listed."""
    path = run / "manifest.json"
    if path.exists():
        first = read_manifest(run)
        origin = {**first, "continued": [*first.get("continued", []), origin["command"]]}
    write_json(path, origin)


def _command() -> str:
    """`torchcaps train ...`, or the program that called `fit`."""
    program = Path(sys.argv[0]).name
    return shlex.join(["torchcaps" if program in ("", "__main__.py", "-c") else program, *sys.argv[1:]])


def manifest(config: dict[str, Any], data_hashes: dict[str, str]) -> dict[str, Any]:
    """Where a result comes from."""
    return {
        "command": _command(),
        "seed": config["train"]["seed"],
        "commit": _commit(),
        "versions": {"torchcaps": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {"processor": processor(), "threads": torch.get_num_threads(), "system": platform.system()},
        "data": data_hashes,
    }


CODE = ("torchcaps", "benchmarks")
"""The folders whose commit a result names: writing results or documents makes it no other code."""


def _commit() -> str | None:
    """The last commit of the source tree this package runs from, if it is one; `-dirty` if a file was changed since."""
    last, changed = _git("log", "-1", "--format=%h"), _git("status", "--porcelain", "--untracked-files=no")
    return f"{last}-dirty" if last and changed else last or None


def _git(*command: str) -> str | None:
    """What git says about the code, if it is here."""
    try:
        answer = subprocess.run(
            ["git", *command, "--", *CODE], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
