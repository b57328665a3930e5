"""What the commands list, and what the help says about defaults, is what the tables hold."""

import argparse
import json
import re
from dataclasses import dataclass

import pytest
from torch import nn

from torchcaps.app import listings
from torchcaps.app.cli import _parser, main
from torchcaps.app.flags import own_trainings
from torchcaps.models import registry
from torchcaps.models.registry import MODELS, configure, register_model, suited_training
from torchcaps.routing import ROUTINGS, Dynamic, register_routing
from torchcaps.training.config import TrainConfig, defaults_for


def test_the_file_is_what_the_tables_say() -> None:
    assert listings.kept() == json.loads(json.dumps(listings.made())), "run python tools/listings.py"


def train_help() -> str:
    parser = _parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return " ".join(commands.choices["train"].format_help().split())


def test_the_help_of_train_names_every_default() -> None:
    text, usual = train_help(), TrainConfig("", "")
    assert f"watch progress, at most a tenth (default: {usual.validation})" in text
    assert f"how often to save (default: {usual.checkpoint_seconds:g})" in text
    assert f"order and augmentation (default: {usual.seed})" in text
    assert "(default: the model's own, 128, 64 or 32)" in text
    assert "(default: the model's own, 0.01, 0.001 or 0.003)" in text
    assert "(default: the model's own, adam or muon)" in text
    assert "(default: the model's own, linear or decay)" in text
    assert "(default: the model's own, 0.05 or 0)" in text
    for title in ("budget:", "data:", "optimisation:", "network:", "your own images:", "output:"):
        assert title in text
    assert usual.average == 0
    assert usual.balance == "auto"
    assert configure("capsnet-mnist").recipe == "paper"


def test_the_trainings_in_the_help_are_those_of_the_models() -> None:
    """Every model is named with its own training, or has the one of most models."""
    muon = r"(?: \(muon's (\d+) times that\))?"
    sentences = re.findall(
        rf"([\w, -]+): (\w+), learning rate ([\d.]+){muon}, schedule (\w+), warm-up ([\d.]+), batches of (\d+)\.",
        own_trainings(),
    )
    said = {name.strip(): values for names, *values in sentences for name in names.split(",")}
    for name in MODELS:
        config = defaults_for(name)
        optimiser, lr, factor, schedule, warmup, batch = said.get(name, said["Most models"])
        assert (config.optimiser, config.schedule, config.batch) == (optimiser, schedule, int(batch))
        assert (config.lr, config.warmup) == (float(lr), float(warmup))
        assert config.muon_factor == float(factor or 3)


def test_what_the_help_says_about_models_that_size_themselves() -> None:
    small = defaults_for("capsnet-mnist-small")
    assert suited_training(1280) == {**MODELS["capsnet-mnist-small"].training, "batch": small.batch}
    assert suited_training(1279)["batch"] < small.batch
    assert suited_training(1280, "photo") == {**suited_training(1280), "muon_factor": 8}
    assert [name for name, entry in MODELS.items() if entry.fits_any] == ["capsnet", "cnn"]
    assert {MODELS[name].data for name in ("capsnet", "cnn")} == {"mnist"}


def test_routings_json_has_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    main(["routings", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert all(set(row) == {"name", "paper", "about", "options"} for row in rows)
    assert [row["name"] for row in rows] == list(ROUTINGS)
    assert all(re.search(r'^[A-Z].*, ".+", .*\d{4}$', row["paper"]) for row in rows)
    dynamic = rows[0]
    assert "Sabour" in dynamic["paper"]
    assert dynamic["options"]["iterations"] == 3


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--list", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {"table1", "routings"} <= {row["name"] for row in rows}
    main(["reproduce", "--list"])
    assert "table1" in capsys.readouterr().out


def test_what_a_program_registers_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @dataclass(frozen=True)
    class Config:
        image: tuple[int, int, int] = (1, 8, 8)
        classes: int = 2
        objects: int = 1

    class Mine(Dynamic):
        pass

    monkeypatch.setattr(registry, "MODELS", dict(MODELS))
    monkeypatch.setattr(registry, "KINDS", dict(registry.KINDS))
    monkeypatch.setattr("torchcaps.routing.ROUTINGS", dict(ROUTINGS))
    register_model("mine", Config(), lambda config: nn.Linear(3, config.classes), about="a [/bold] name")
    register_routing("my-routing", Mine)
    main(["models", "--json"])
    last = json.loads(capsys.readouterr().out)[-1]
    assert last == {"name": "mine", "parameters": 8, "pretrained": False, "accuracy": None}
    main(["routings", "--json"])
    assert json.loads(capsys.readouterr().out)[-1]["name"] == "my-routing"
    main(["models"])
    assert "a [/bold] name" in capsys.readouterr().out


def test_a_table_is_not_broken_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["routings"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ROUTINGS) + 1
    assert "…" not in "".join(lines)
