"""Routings on equal terms: a plan that treats all alike, measures that are right, a guide that says what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import routing_guide as guide
import torch
from torch import nn

from torchcaps.analysis.evaluate import evaluate
from torchcaps.data import images
from torchcaps.experiments.base import Study
from torchcaps.experiments.routings import STEPS, Table, centred, evenly, inspect, plan, tabulate
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.registry import create_model
from torchcaps.routing import ROUTINGS
from torchcaps.testing.routing_case import RoutingCase, routed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to-choose-a-routing.md"


def test_all_routings_get_the_same_networks_steps_and_seeds() -> None:
    seeds = {"quick": [0, 0, 1, 1, 2, 2], "standard": [100] * 6 + [n // 2 for n in range(10)]}
    for preset in seeds:
        terms: dict[str, list] = {name: [] for name in ROUTINGS}
        for trial in plan(Study("routings", preset)):
            overrides = dict(trial.overrides)
            terms[overrides.pop("routing")].append((trial.model, trial.data, trial.seed, overrides, trial.training))
            if trial.seed != 100:
                task = "multimnist" if trial.data == "multimnist" else "translated"
                assert trial.training == {"steps": STEPS[preset][task]}
        assert all(given == terms["uniform"] for given in terms.values())
        assert [given[2] for given in terms["uniform"]] == seeds[preset]


@pytest.mark.parametrize("name", ROUTINGS)
def test_evened_out_couplings_are_one_over_the_parents(name: str) -> None:
    case = RoutingCase(ROUTINGS[name])
    trace = routed(case.routing(), *case.inputs(), trace=True, competition=evenly).trace
    assert trace is not None
    torch.testing.assert_close(trace.couplings, torch.full_like(trace.couplings, 1 / case.shape.parents))


def network(routing: str) -> CapsNet:
    torch.manual_seed(0)
    model = create_model("capsnet-mnist-small", routing=routing, channels=16, decoder=None)
    assert isinstance(model, CapsNet)
    return model.eval()


def test_what_uniform_couplings_do_is_nothing() -> None:
    digits = images("mnist-mini", "test").take(torch.arange(60))
    found = inspect(network("uniform"), digits)
    assert found["changed"] == 0
    assert found["entropy"] == pytest.approx(1)
    assert found["accuracy"] == found["accuracy_evenly"] == evaluate(network("uniform"), digits)["accuracy"]


def test_what_a_routing_does_is_seen() -> None:
    digits = images("mnist-mini", "test").take(torch.arange(60))
    model = network("random")
    model.classes.routing.logits.mul_(20)
    found = inspect(model, digits)
    assert found["changed"] > 0.3
    assert found["entropy"] < 0.2
    assert found["accuracy"] == evaluate(model, digits)["accuracy"]


def test_dead_capsules_are_counted() -> None:
    digits = images("mnist-mini", "test").take(torch.arange(60))
    model = network("dynamic")
    model.classes.weight.data.mul_(10)[:, 3] = 0
    norm = model.primary.norm
    assert isinstance(norm, nn.BatchNorm2d)
    norm.bias.data.fill_(1)
    norm.weight.data[:8], norm.bias.data[:8] = 0, 0
    found = inspect(model, digits)
    assert found["dead_primary"] == pytest.approx(1 / 4)
    assert found["dead_classes"] == pytest.approx(1 / 10)


def test_centred_digits_lie_in_the_middle() -> None:
    digits = centred("mnist-mini")
    assert digits.images.shape[1:] == (1, 40, 40)
    assert torch.equal(digits.images[:, :, 6:34, 6:34], images("mnist-mini", "test").images)
    assert digits.images.sum() == images("mnist-mini", "test").images.sum()


def made_up(scores: dict[str, list[float]]) -> Table:
    def measured(score: float) -> dict[str, float]:
        found = {"accuracy": score, "accuracy_evenly": score, "changed": 1 - score, "entropy": score, "steps": 70.0}
        return found | {"dead_primary": 0.125, "dead_classes": 0.0}

    costs = {"parameters": 1000, "step_ms": 20.0, "routing_ms": 3.0, "step_mb": 50.0}
    seeds = {name: [dict.fromkeys(guide.ASKED, measured(x)) for x in values] for name, values in scores.items()}
    return tabulate(seeds, {name: costs | {"step_ms": 20.0 * (n + 1)} for n, name in enumerate(scores)})


def test_the_guide_draws_its_advice_from_the_numbers() -> None:
    rows = made_up({"uniform": [0.90, 0.91, 0.92, 0.91, 0.91], "dynamic": [0.95, 0.96, 0.97, 0.96, 0.96],
                    "em": [0.94, 0.97, 0.96, 0.95, 0.97], "heinsen": [0.80, 0.81, 0.82, 0.81, 0.81],
                    "random": [0.89, 0.93, 0.90, 0.92, 0.90]})  # fmt: skip
    text = "\n".join(guide.advice(rows))
    multimnist = next(line for line in text.splitlines() if line.startswith("**MultiMNIST"))
    assert "`dynamic` scored best, 96.00 ± 0.71 %" in multimnist
    assert "not separated from it by these seeds: `em`." in multimnist
    assert "at least 5 seeds: `dynamic` and `em`; worse: `heinsen`." in multimnist
    assert "for `heinsen`, the most; less than 1 % for none of them." in text
    assert "20 ms with `uniform` and 100 ms, 5.0 times as long, with `random`" in text
    assert "| `heinsen` | 81.00 ± 0.71 %" in guide.table(rows)


def test_the_leaderboard_ranks_and_decides() -> None:
    rows = made_up({"uniform": [0.90, 0.91, 0.92, 0.91, 0.91], "dynamic": [0.95, 0.96, 0.97, 0.96, 0.96],
                    "random": [0.89, 0.93, 0.90, 0.92, 0.90]})  # fmt: skip
    rates = {f"{name}-{task}": 0.01 for name in rows for task in ("translated", "multimnist")}
    setting = {"steps": {"translated": 500, "multimnist": 900}, "rates": rates}
    page = guide.leaderboard({"command": "x", "commit": "c", "configuration": setting, "values": rows})
    assert page.index("| 1 | `dynamic` | 96.00 ± 0.71 % | 0.01 | +5.00 to +5.00 points | 0 | better |") > 0
    assert re.search(r"\| 2 \| `uniform` .* \| the control \|", page)
    assert re.search(r"\| 3 \| `random` .* \| not separated \|", page)
    assert "Not measured yet" in guide.leaderboard(None)


def test_one_seed_decides_nothing() -> None:
    text = guide.advice(made_up({"uniform": [0.5], "dynamic": [0.9]}))[0]
    assert "not separated from it by these seeds: `uniform`" in text
    assert "at least 5 seeds: none of them" in text


def test_the_guide_is_what_the_results_say() -> None:
    check = [sys.executable, ROOT / "tools/routing_guide.py", "--check"]
    answer = subprocess.run(check, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_a_number_changed_by_hand_would_be_noticed() -> None:
    page = PAGE.read_text()
    origin = {"command": "x", "machine": {"processor": "y"}, "versions": {"torch": "z"}, "commit": "c"}
    result = {
        **origin,
        "configuration": {"seconds": 30.0},
        "values": made_up({"uniform": [0.5, 0.6], "em": [0.7, 0.9]}),
    }
    written = guide.render(page, result)
    assert guide.render(written, result) == written
    assert guide.render(written.replace("55.00", "56.00"), result) == written
    assert guide.render(written, None) != written


def test_the_guide_names_every_routing() -> None:
    listed = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE.read_text().split("## Measured")[0], flags=re.M)
    assert set(listed) == set(ROUTINGS)
