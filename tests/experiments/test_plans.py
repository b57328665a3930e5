"""The paper presets are the published protocols, down to the numbers."""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from torchcaps.analysis.probes import TWEAKS
from torchcaps.app.cli import main
from torchcaps.data import DATA
from torchcaps.experiments import EXPERIMENTS
from torchcaps.experiments.base import PRESETS, Study, Trial
from torchcaps.experiments.costs import cost
from torchcaps.experiments.reproduce import load, plan
from torchcaps.experiments.search import SEED
from torchcaps.models.registry import configure, count_parameters, create_model


def paper(name: str) -> list[Trial]:
    return load(name).plan(Study(name, "paper"))


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_plan_can_be_built(name: str, preset: str) -> None:
    trials = load(name).plan(Study(name, preset))
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        config = configure(trial.model, **trial.network)
        assert DATA[trial.data].image == config.image, trial
        assert DATA[trial.data].objects == config.objects
        assert trial.config.seed == trial.seed
        assert trial.config.max_seconds is None, "a result must not depend on how busy the machine was"
        assert trial.config.epochs or trial.config.steps
    assert load(name).PAPER
    assert set(load(name).CUT) == {"quick", "standard"}


HOURS = {"table1": 5.0, "svhn": 1.5, "affnist": 1.5, "routings": 2.5}
PLANNED_APART = {"seed003", "crowding", "overlap-controls"}


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in PLANNED_APART])
def test_standard_plans_keep_to_their_hours(name: str) -> None:
    trials = load(name).plan(Study(name, "standard"))
    costs = [cost(trial) for trial in trials]
    assert all(trial.config.steps for trial in trials), "budgets in steps"
    assert all(one["hours"] is not None for one in costs), "run python tools/costs.py"
    assert max((one["hours"] for one in costs), default=0) <= 1.0
    assert sum(one["hours"] for one in costs) <= 1.1 * HOURS.get(name, 1.0)
    compared = Counter((trial.model, trial.data, json.dumps(trial.overrides)) for trial in trials if trial.seed < 100)
    assert all(seeds >= 5 for seeds in compared.values())


def test_every_network_of_a_comparison_gets_the_same_search() -> None:
    trials = load("table1").plan(Study("table1", "standard"))
    search = [trial for trial in trials if trial.seed == SEED]
    rates = {
        trial.name: trial.config.lr for trial in search if trial.name.startswith("search-mnist-capsnet-r3-decoder")
    }
    assert list(rates.values()) == [0.0033, 0.01, 0.03]
    assert len(search) == 8 * 3 + 2 * 3, "the CNNs also try two widths and another decay"
    assert all(trial.config.validation == 5000 for trial in search), "chosen on held-out images"
    assert all(trial.config.validation == 0 for trial in trials if trial.seed != SEED)
    steps = {trial.name.removeprefix("search-multimnist-cnn-"): trial.config.steps for trial in search}
    assert (steps["narrow"], steps["0.01"], steps["wide"]) == (727, 400, 333), "what costs more gets fewer steps"


def test_table1_is_the_papers() -> None:
    trials = paper("table1")
    assert Counter(trial.data for trial in trials) == {"mnist": 15, "multimnist-stratified": 3}
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
    assert trials[0].config.augment == {"flip": True, "brightness": 63 / 255, "contrast": 0.8}
    assert (config.backbone, config.standardise, config.recipe) == ("paper-padded", True, "official")


def test_the_others_have_the_papers_numbers() -> None:
    assert all(trial.config.stop_at is None for trial in paper("affnist")), "compared along the curve"
    assert paper("figA1")[0].config.epochs == 500
    assert [trial.overrides["routing_options"]["iterations"] for trial in paper("figA2")] == [1, 2, 3, 5, 7]
    assert TWEAKS[0] == -0.25
    assert TWEAKS[-1] == 0.25
    assert len(TWEAKS) == 11
    svhn = configure(paper("svhn")[0].model)
    assert (svhn.channels, svhn.primary_types, svhn.primary_dim, svhn.dim) == (64, 16, 6, 8)
    assert paper("smallnorb")[0].config.augment == {}, "crops alone, no brightness and contrast"
    norb = configure(paper("smallnorb")[0].model)
    assert replace(norb, image=(1, 28, 28), classes=10) == configure("capsnet-mnist"), "the exact same architecture"
    released = paper("smallnorb")[1]
    assert released.overrides == {"recipe": "official", "standardise": True}
    assert released.config.augment == {"brightness": 63 / 255, "contrast": 0.8}
    matrix = paper("smallnorb-em")[0]
    assert matrix.overrides == {"margin_schedule": "sigmoid"}
    assert (matrix.config.schedule, matrix.config.decay_steps, matrix.config.warmup) == ("decay", 20_000, 0.0)


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
    full = changed.pop("full-capacity")
    assert full.config == replace(config, warmup=0.05)
    assert count_parameters(create_model(full.model, **full.overrides)) == 11_361_808
    assert all(trial.config == replace(config, data=trial.data, pairs=trial.config.pairs) for trial in changed.values())


def test_trials_can_be_chosen() -> None:
    assert len({trial["seed"] for trial in plan("table1", "quick", 5)}) == 5


def test_the_command_lists_a_plan_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "table1", "--preset", "paper", "--plan", "--json"])
    plans = json.loads(capsys.readouterr().out)
    assert len(plans) == 18
    assert plans[0]["steps"] == 300_000
    main(["reproduce", "svhn", "--preset", "standard", "--plan"])
    *_, total, _, on_gpu = capsys.readouterr().out.splitlines()
    assert re.match(r"24 trainings +[\d,]+ +0\.[5-8]\d", total)
    assert "some 0.02 hours" in on_gpu


@pytest.mark.parametrize("arguments", [["table2"], ["table1", "--trials", "0"], ["table1", "--preset", "slow"]])
def test_bad_requests_are_refused_in_a_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
