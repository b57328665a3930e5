"""Training: kills, resumption, several processes, honest selection."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save

from torchcaps import data as named
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json, write_json, write_tensors
from torchcaps.models.baseline import CNN
from torchcaps.models.registry import create_model
from torchcaps.training.config import defaults_for
from torchcaps.training.fit import fit
from torchcaps.training.loop import train_step
from torchcaps.training.optim import learning_rate, load_optimiser_tensors, make_optimisers, optimiser_tensors
from torchcaps.training.runs import Checkpoint, keep_origin, load_run, prolong, read_answers
from torchcaps.training.train import go_on, train

SMALL = {"data": "mnist-mini", "epochs": 0.8, "batch": 32, "validation": 200, "checkpoint_seconds": 0.2}


TINY = {"channels": 16, "primary_types": 2, "decoder": (16,)}
# One row of metrics at 50 steps, one at the end.
OPTIONS = "--data mnist-mini --epochs 0.4 --batch 32 --validation 200 --checkpoint-seconds 0.2"


def command(out: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torchcaps",
        "train",
        "capsnet-mnist-small",
        *OPTIONS.split(),
        "--out",
        str(out),
        *more,
    ]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("train") / "whole"
    subprocess.run(command(out), check=True, capture_output=True, env=ENVIRONMENT)
    return out


def test_a_finished_run_can_be_prolonged(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "longer"
    shutil.copytree(uninterrupted, out)
    before = read_json(out / "result.json")
    subprocess.run(command(out, "--resume"), check=True, capture_output=True, env=ENVIRONMENT)
    assert read_json(out / "result.json") == before, "the same budget: nothing is left to do"
    subprocess.run(command(out, "--resume", "--epochs", "0.6"), check=True, capture_output=True, env=ENVIRONMENT)
    after = read_json(out / "result.json")
    assert after["steps"] == pytest.approx(before["steps"] * 1.5, abs=1)
    assert after["weights_sha256"] != before["weights_sha256"]
    assert read_json(out / "result-before.json") == before, "its first scores are kept"
    rows = csv.DictReader((out / "metrics.csv").read_text().splitlines())
    accuracies = [float(row["train_accuracy"]) for row in rows]
    assert accuracies[-1] > 0.7 * accuracies[-2], "a mean over the steps since the last row, however few"
    assert "--epochs 0.6" in read_json(out / "manifest.json")["continued"][0]
    with pytest.raises(UserError, match="does not prolong"):
        prolong(out, {"epochs": 0.3})
    with pytest.raises(UserError, match="was not given one"):
        prolong(out, {"max_seconds": 60.0})


def test_killed_and_resumed_ends_in_the_same_bytes(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    moments = random.Random(0)
    kills = 0
    while not (out / "result.json").exists():
        resume = ["--resume"] if (out / "config.json").exists() else []
        before = _last_checkpoint(out)
        process = subprocess.Popen(command(out, *resume), stderr=subprocess.PIPE, env=ENVIRONMENT)
        # From the first checkpoint of this process on, so that a kill falls into the training, however slow the start.
        while process.poll() is None and _last_checkpoint(out) == before:
            time.sleep(0.01)
        # The first kill at once: a fast machine would be done soon.
        began, wait = time.monotonic(), moments.uniform(0.0, 1.5) if kills else 0.0
        while process.poll() is None and time.monotonic() - began < wait:
            time.sleep(0.01)
        if process.poll() is None and kills < 2:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    assert kills > 0
    for name in ("model.safetensors", "metrics.csv"):
        same = (out / name).read_bytes() == (uninterrupted / name).read_bytes()
        assert same, name


def _last_checkpoint(out: Path) -> set[str]:
    return {path.name for path in (out / "checkpoint").glob("*.safetensors")}


def test_optimisers_go_on_as_if_never_saved() -> None:
    """Also for weights laid out channels last, which files do not record."""
    batch = next(named.images("mnist-mini", "test").batches(8))
    networks = []
    for resumed in (False, True):
        torch.manual_seed(0)
        model = create_model("capsnet-mnist-small").to(memory_format=torch.channels_last)
        optimisers = make_optimisers(model, "muon", 1e-2)
        train_step(model, batch, optimisers)
        if resumed:
            saved = load(save({k: v.contiguous() for k, v in optimiser_tensors(optimisers).items()}))
            optimisers = make_optimisers(model, "muon", 1e-2)
            load_optimiser_tensors(optimisers, saved)
        train_step(model, batch, optimisers)
        networks.append(model.state_dict())
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])


def test_a_long_gradient_is_shortened_to_the_clip() -> None:
    batch = next(named.images("mnist-mini", "test").batches(8))
    norms, directions = [], []
    for clip in (None, 0.01, 1e9):
        torch.manual_seed(0)
        model = create_model("capsnet-mnist-small")
        train_step(model, batch, make_optimisers(model, "adam", 1e-3), clip=clip)
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        norms.append(gradient.norm().item())
        directions.append(gradient / gradient.norm())
    assert norms[0] == norms[2] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(directions[1], directions[0], rtol=0, atol=1e-5)


def test_schedules_fall_as_they_say() -> None:
    for schedule, end in (("exponential", 0.01), ("linear", 0.0), ("cosine", 0.0), ("constant", 1.0)):
        falling = [learning_rate(schedule, part / 10, 0) for part in range(11)]
        assert falling == sorted(falling, reverse=True)
        assert (falling[0], falling[-1]) == (1.0, pytest.approx(end))
    assert learning_rate("exponential", 0.5, 0) == pytest.approx(0.1)
    assert learning_rate("decay", 0.5, 40_000, decay_steps=20_000) == pytest.approx(0.96**2)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save({"x": torch.arange(100.0)}, {"step": 3})
    file = next((tmp_path / "checkpoint").glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load()


def test_a_checkpoint_cut_short_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save({"x": torch.ones(3)}, {"step": 1})
    # Killed after the tensors of step 2 were written and before the pointer moved.
    write_tensors(tmp_path / "checkpoint" / "step-2.safetensors", {"x": torch.zeros(3)})
    loaded = checkpoint.load()
    assert loaded is not None
    assert loaded[1]["step"] == 1
    assert loaded[0]["x"].tolist() == [1, 1, 1]


def test_a_checkpoint_of_the_same_step_cut_short_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save({"x": torch.ones(3)}, {"step": 1})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("torchcaps.training.runs.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save({"x": torch.zeros(3)}, {"step": 1})
    loaded = checkpoint.load()
    assert loaded is not None
    assert loaded[0]["x"].tolist() == [1, 1, 1]
    checkpoint.save({"x": torch.full((3,), 2.0)}, {"step": 1})
    kept = {read_json(pointer)["file"] for pointer in (checkpoint.latest, checkpoint.previous)}
    left = {path.name for path in (tmp_path / "checkpoint").glob("*.safetensors")}
    assert left == kept, "what was left over is gone"


def test_a_run_is_not_gone_on_with_by_another_configuration(tmp_path: Path) -> None:
    config = defaults_for("cnn-mnist-small", **{**SMALL, "epochs": 0.02})
    result = train(config, tmp_path / "run", {"channels": 16})
    assert train(config, tmp_path / "run", {"channels": 16}) == result
    with pytest.raises(UserError, match=r"epochs 0.02, not 0.04"):
        train(replace(config, epochs=0.04), tmp_path / "run", {"channels": 16})
    (tmp_path / "run/result.json").unlink()
    with pytest.raises(UserError, match="channels 16, not 24"):
        train(config, tmp_path / "run", {"channels": 24})


def test_a_budget_in_steps_is_prolonged_and_an_old_run_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = {"overrides": {"channels": 16}, "batch": 16, "validation": 100, "quiet": True}
    assert fit("cnn-mnist-small", "mnist-mini", out=out, steps=2, **options)["steps"] == 2
    with pytest.raises(UserError, match=r"^steps=1 does not prolong"):
        go_on(out, steps=1)
    assert go_on(out, steps=4, quiet=True)["steps"] == 4
    config, result = read_json(out / "config.json"), read_json(out / "result.json")
    config["model"]["digits"] = config["model"].pop("objects")
    config["train"] = {k: v for k, v in config["train"].items() if k not in ("steps", "test", "loss")}
    config["train"]["epochs"] = 4 * 16 / 4900
    write_json(out / "config.json", {"train": config["train"], "model": config["model"]})
    write_json(out / "result.json", {k: v for k, v in result.items() if k != "answers_sha256"})
    assert load_run(out)[0].config.objects == 1
    assert read_answers(out) is None
    (out / "result.json").unlink()
    assert go_on(out, quiet=True)["weights_sha256"] == result["weights_sha256"]
    assert go_on(out, epochs=6 * 16 / 4900, quiet=True)["steps"] == 6


def test_begun_again_it_comes_from_the_first_command(tmp_path: Path) -> None:
    for command in ("train capsnet", "train --resume", "train --resume again"):
        keep_origin(tmp_path, {"command": command})
    assert read_json(tmp_path / "manifest.json") == {
        "command": "train capsnet",
        "continued": ["train --resume", "train --resume again"],
    }


def test_without_a_decoder_nothing_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    forward = CNN.forward

    def counted(model: CNN, images: torch.Tensor, labels: torch.Tensor | None = None, trace: bool = False) -> object:
        looked.extend([] if model.training else [len(images)])
        return forward(model, images, labels, trace)

    monkeypatch.setattr(CNN, "forward", counted)
    train(defaults_for("cnn-mnist-small", **{**SMALL, "epochs": 0.1, "validation": 0}), tmp_path, {"channels": 16})
    assert sum(looked) == 1000, "the test set, once"


def test_a_batch_larger_than_the_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="more than the"):
        train(defaults_for("cnn-mnist-small", **{**SMALL, "batch": 8192}), tmp_path, {"channels": 16})


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path) -> None:
    config = defaults_for("capsnet-mnist-small", **{**SMALL, "epochs": 0.1})
    hashes = [
        train(replace(config, seed=seed), tmp_path / str(index), TINY)["weights_sha256"]
        for index, seed in enumerate([0, 0, 1])
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.alone
def test_wall_clock_budget_is_kept(tmp_path: Path) -> None:
    config = replace(defaults_for("capsnet-mnist-small", **SMALL), epochs=None, max_seconds=3.0)
    result = train(config, tmp_path / "run")
    assert 3.0 <= result["seconds"] < 6.0


def test_weight_averaging_is_saved_and_used(tmp_path: Path) -> None:
    config = replace(defaults_for("capsnet-mnist-small", **{**SMALL, "epochs": 0.3}), average=0.9)
    train(config, tmp_path / "run", TINY)
    model, _ = load_run(tmp_path / "run")
    tensors, _ = Checkpoint(tmp_path / "run").load() or ({}, {})
    for name, value in model.state_dict().items():
        assert torch.equal(value, tensors[f"average.{name}"])
    assert not torch.equal(tensors["average.classes.weight"], tensors["model.classes.weight"])


PARALLEL = ("capsnet-mnist-small", "capsnet-svhn")


@pytest.fixture(scope="module")
def of_one_and_of_two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What one process computes, and what two do."""
    script, folders = Path(__file__).parent / "distributed_worker.py", []
    for world in (1, 2):
        folder = tmp_path_factory.mktemp(f"world{world}")
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "--master-port", "0"]
        answer = subprocess.run(
            [*launch, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(script), str(folder), *PARALLEL],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
        assert answer.returncode == 0, answer.stderr
        folders.append(folder)
    return folders


@pytest.mark.parametrize("model", PARALLEL)
def test_two_processes_compute_the_gradient_of_one(model: str, of_one_and_of_two: list[Path]) -> None:
    """With batch normalisation (over the global batch) and without."""
    one, two = (load_file(folder / f"{model}.safetensors") for folder in of_one_and_of_two)
    for name in one:
        if name != "curve":
            scale = one[name].abs().max().clamp(min=1e-3)
            assert (one[name] - two[name]).abs().max() / scale < 1e-5, name
            assert (one[name] - two[name]).abs().max() < 1e-6, name
    assert (one["curve"] - two["curve"]).abs().max() < 1e-4
    assert len(one["curve"]) == 50


def test_metrics_are_recorded(uninterrupted: Path) -> None:
    header = (uninterrupted / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"step", "epoch", "lr", "total", "margin", "reconstruction", "train_accuracy"} <= set(header)
    assert read_json(uninterrupted / "result.json")["selection"] == "last step"
    assert json.loads((uninterrupted / "config.json").read_text())["train"]["seed"] == 0
