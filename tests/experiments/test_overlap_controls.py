"""Controls on equal terms, and claims that follow from the numbers."""

import pytest

from torchcaps.experiments.base import Study
from torchcaps.experiments.overlap_controls import CAPSULES, CONTROLS, NETWORKS, _claim, plan
from torchcaps.experiments.verdicts import settled
from torchcaps.models.registry import configure, count_parameters, create_model


def test_all_get_the_same_pairs_and_seeds() -> None:
    for preset, data, seeds in (("quick", "multimnist-iou80", 5), ("paper", "multimnist", 3)):
        trials = plan(Study("overlap-controls", preset))
        assert [trial.name for trial in trials[:seeds]] == [f"capsules-{seed}" for seed in range(seeds)]
        assert {trial.data for trial in trials} == {data}
        assert {trial.config.batch for trial in trials if trial.model != "cnn-multimnist"} == {64}
        assert {trial.config.validation for trial in trials} == {2000}
        for network in NETWORKS:
            own = [trial for trial in trials if trial.name.rpartition("-")[0] == network.name]
            assert [trial.seed for trial in own] == list(range(seeds))
            assert {trial.config.steps for trial in own} == {network.steps[preset]}


def test_the_controls_lack_what_they_say() -> None:
    capsules, cnn, one, even, paper = (configure(network.model, **network.overrides) for network in NETWORKS)
    assert capsules.routing_options == {"iterations": 3, "sharpness": 8.0}
    assert one.routing_options == {"iterations": 1}
    assert even.routing == "uniform"
    assert CONTROLS[1].steps == CONTROLS[2].steps == CAPSULES.steps
    assert (cnn.window, cnn.channels) == (capsules.window, capsules.channels), "the same backbone"
    assert count_parameters(create_model(CONTROLS[3].model)) == 24_563_978
    assert paper.design == "multimnist"


@pytest.mark.parametrize(
    ("control", "word"),
    [
        ([0.80, 0.81, 0.80, 0.79, 0.80], "holds"),
        ([0.91, 0.89, 0.90, 0.92, 0.88], "undecided"),
        ([0.95] * 5, "refuted"),
    ],
)
def test_claims_are_decided_over_seeds(control: list[float], word: str) -> None:
    accuracy = {CAPSULES: [0.90, 0.91, 0.89, 0.90, 0.90], CONTROLS[2]: control}
    tests = [{"p": 0.01, "mean": 0.02}, {"p": 0.01, "mean": -0.01}, {"p": 0.2, "mean": 0.5}]
    (found,) = settled([_claim(CONTROLS[2], accuracy, tests)])
    assert found.word == word
    assert "by McNemar ahead in 1, behind in 1 of 3 seeds" in found.note
    assert found.ours == pytest.approx(sum(accuracy[CAPSULES]) / 5 - sum(control) / 5)
