"""The paper presets are the published protocols, down to the numbers."""

import json
from dataclasses import replace

import pytest

from torchcaps.analysis.probes import TWEAKS
from torchcaps.app.cli import main
from torchcaps.data import DATA
from torchcaps.experiments import EXPERIMENTS
from torchcaps.experiments.base import Study, Trial
from torchcaps.experiments.reproduce import load, plan
from torchcaps.models.registry import configure, count_parameters, create_model


def paper(name: str) -> list[Trial]:
    return load(name).plan(Study(name, "paper"))


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", ["quick", "paper", "smoke"])
def test_every_plan_can_be_built(name: str, preset: str) -> None:
    trials = load(name).plan(Study(name, preset))
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        config = configure(trial.model, **trial.overrides)
        assert DATA[trial.data].image == config.image, trial
        assert DATA[trial.data].objects == config.objects
        assert trial.config.seed == trial.seed
        assert trial.config.max_seconds is None, "a result must not depend on how busy the machine was"
        assert trial.config.epochs or trial.config.steps
    assert load(name).PAPER
    assert load(name).CUT


def test_table1_is_the_papers() -> None:
    trials = paper("table1")
    assert [trial.data for trial in trials] == ["mnist"] * 15 + ["multimnist"] * 3
    for trial in trials:
        config = trial.config
        assert (config.batch, config.optimiser, config.lr, config.schedule) == (128, "adam", 1e-3, "decay")
        assert config.validation == 0, "the paper trains on all of the training set"
        if trial.data == "mnist":
            assert config.epochs * 60_000 / config.batch == 300_000
            assert config.decay_steps == 2_000
        else:
            assert config.epochs * 60_000 == 60_000_000
            assert config.decay_steps == 20_000, "10 times the period"
            assert config.test_pairs == 10_000_000


@pytest.mark.parametrize(
    ("trial", "parameters"),
    [
        ("mnist-capsnet-r3-0", 6_804_224),
        ("mnist-capsnet-r1-decoder-0", 8_215_568),
        ("mnist-cnn-0", 35_445_522),
        ("multimnist-capsnet-r3-decoder-0", 11_361_808),
    ],
)
def test_table1_has_the_papers_networks(trial: str, parameters: int) -> None:
    found = next(t for t in paper("table1") if t.name == trial)
    assert count_parameters(create_model(found.model, **found.overrides)) == parameters


def test_cifar10_is_an_ensemble_of_seven() -> None:
    trials = paper("cifar10")
    assert [trial.seed for trial in trials] == list(range(7))
    config = configure(trials[0].model, **trials[0].overrides)
    assert (config.image, config.primary_types, config.decoder) == ((3, 24, 24), 64, None)
    assert config.routing_options == {"iterations": 3, "leaky": True}
    assert trials[0].config.epochs * 50_000 / 128 == 600_000


def test_the_others_have_the_papers_numbers() -> None:
    assert all(trial.config.stop_at == 0.992 for trial in paper("affnist"))
    assert paper("figA1")[0].config.epochs == 500
    assert [trial.overrides["routing_options"]["iterations"] for trial in paper("figA2")] == [1, 3]
    assert TWEAKS[0] == -0.25
    assert TWEAKS[-1] == 0.25
    assert len(TWEAKS) == 11
    svhn = configure(paper("svhn")[0].model)
    assert (svhn.channels, svhn.primary_types, svhn.primary_dim, svhn.dim) == (64, 16, 6, 8)
    assert paper("smallnorb")[0].config.augment == {}, "crops alone, no brightness and contrast"
    norb = configure(paper("smallnorb")[0].model)
    assert replace(norb, image=(1, 28, 28), classes=10) == configure("capsnet-mnist"), "the exact same architecture"


def test_seed003_is_to_the_letter() -> None:
    trials = {trial.name: trial for trial in paper("seed003")}
    assert len(trials) == 7 * 5
    letter = trials["ink-boxes-0"]
    network, config = configure(letter.model, **letter.overrides), letter.config
    assert (network.channels, network.primary_types, network.primary_dim, network.dim) == (32, 8, 8, 16)
    assert (network.decoder, network.routing_options) == ((256, 512), {"iterations": 3, "gradient": "last"})
    assert (config.pairs, config.steps, config.batch) == (6000, 8 * 187, 32)
    assert (config.optimiser, config.lr, config.schedule, config.warmup) == ("adam", 1e-3, "constant", 0.0)
    assert create_model(letter.model, **letter.overrides).classes.weight.numel() == 800 * 10 * 16 * 8
    changed = {name.removesuffix("-0"): trial for name, trial in trials.items() if trial.seed == 0}
    assert changed["digit-boxes"].data == "multimnist-iou80-box20"
    assert changed["fresh-pairs"].config == replace(config, pairs=None)
    assert "gradient" not in changed["all-iterations"].overrides["routing_options"]
    assert changed["reconstruction"].overrides == {**letter.overrides, "reconstruction_weight": 0.005}
    assert changed["capacity"].overrides == {**letter.overrides, "channels": 64, "primary_types": 16}
    full = changed["full-capacity"]
    assert count_parameters(create_model(full.model, **full.overrides)) == 11_361_808
    assert all(trial.config == replace(config, data=trial.data, pairs=trial.config.pairs) for trial in changed.values())


def test_trials_can_be_chosen() -> None:
    assert len({trial["seed"] for trial in plan("table1", "quick", 5)}) == 5


def test_the_command_lists_a_plan_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "table1", "--preset", "paper", "--plan", "--json"])
    assert len(json.loads(capsys.readouterr().out)) == 18


@pytest.mark.parametrize("arguments", [["table2"], ["table1", "--trials", "0"], ["table1", "--preset", "slow"]])
def test_bad_requests_are_refused_in_a_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
