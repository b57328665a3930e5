"""Choices are made by computed cost or processor time, kept with their evidence, checked, and healed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels.conftest import new_process
from torchcaps.kernels import convolution, evidence, processor_time, tuning

LONG_AGO = "2020-01-01T00:00:00+00:00"


class Twins:
    """Work that takes as much of a fake processor's time as one says, and counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.seconds, self.calls, self.clock = seconds, Counter[str](), 0.0
        monkeypatch.setattr(processor_time.time, "process_time", lambda: self.clock)

    def __call__(self, twin: str) -> None:
        self.calls[twin] += 1
        self.clock += self.seconds[twin]

    def choose(self, name: str = "a", **estimates: float) -> str:
        return tuning.choose(name, estimates, estimates.__getitem__, self)


def stored(path: Path) -> dict[str, Any]:
    (machine,) = json.loads(path.read_text())["machines"].values()
    return machine["choices"]


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    for machine in content["machines"].values():
        change(machine["choices"])
    path.write_text(json.dumps(content))


def test_clear_cost_decides_without_a_call(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch, plain=1, fast=100)
    assert twins.choose(plain=3, fast=1) == "fast"
    assert not twins.calls
    assert stored(fresh)["a"]["by"] == "computed cost"
    assert stored(fresh)["a"]["estimated_ms"] == {"plain": 3000, "fast": 1000}


def test_close_cost_is_measured_and_the_favourite_stays_unless_clearly_beaten(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = Twins(monkeypatch, plain=0.001, fast=0.002, third=0.0001)
    assert twins.choose("a", plain=0.0012, fast=0.001, third=0.009) == "plain"
    assert twins.calls["plain"] == twins.calls["fast"] == tuning.ROUNDS + 1
    assert not twins.calls["third"], "not close"
    twins.seconds = {"plain": 0.001, "fast": 0.0011}
    assert twins.choose("b", plain=0.0012, fast=0.001) == "fast"
    twins.seconds = {"plain": 1.0, "fast": 3.0}
    twins.calls.clear()
    assert twins.choose("c", plain=0.0012, fast=0.001) == "plain"
    assert twins.calls["plain"] == 4, "long work gets three rounds"
    assert tuning.choices() == {"a": "plain", "b": "fast", "c": "plain"}
    found = stored(fresh)["a"]
    assert found["measured_ms"] == {"plain": 1.0, "fast": 2.0}
    assert found["rounds"] == tuning.ROUNDS
    assert found["threads"] == torch.get_num_threads()
    assert {"date", "checked", "estimated_ms"} <= set(found)
    assert "torch " in evidence.machine()
    assert "torchcaps " in evidence.machine()


def test_nothing_is_measured_that_takes_too_long(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch, plain=0.001, fast=0.002)
    most = tuning.MEASURED_SECONDS / (tuning.FIRST + tuning.LEAST_ROUNDS) / torch.get_num_threads()
    assert twins.choose("a", plain=0.6 * most, fast=0.5 * most) == "fast"
    assert not twins.calls
    assert twins.choose("b", plain=0.5 * most, fast=0.45 * most) == "plain"


def test_estimates_decide_in_training_until_a_later_day_finds_them_wrong(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins, costs = Twins(monkeypatch, plain=0.001, fast=0.002), {"plain": 1.1, "fast": 1.0}

    def choose() -> str:
        new_process()
        return tuning.choose("a", costs, costs.__getitem__, twins, may_measure=False)

    for _ in range(2):
        assert choose() == "fast"
        for _ in range(2 * tuning.CHECKED_AFTER):
            assert tuning.known("a", twins) == "fast"
    assert not twins.calls, "on the first day"
    edit(fresh, lambda choices: choices["a"].update(checked=LONG_AGO))
    assert choose() == "fast"
    for _ in range(2 * tuning.CHECKED_AFTER):
        assert tuning.known("a", twins) == "fast", "never within a process"
    assert choose() == "plain"
    assert stored(fresh)["a"]["before"] == "fast"


def test_choice_among_other_twins_or_at_other_costs_is_made_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch, plain=0.003, fast=0.002, third=0.001)
    for estimates, expected in (
        ({"plain": 4, "fast": 1}, "fast"),
        ({"plain": 4, "fast": 1, "third": 0.1}, "third"),
        ({"plain": 4}, "plain"),
        ({"plain": 4, "fast": 1}, "fast"),
        ({"plain": 4, "fast": 9}, "plain"),
    ):
        new_process()
        assert twins.choose(**estimates) == expected
        assert stored(fresh)["a"]["choice"] == expected


def test_choice_is_made_once_and_can_be_prescribed(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch, plain=0.002, fast=0.001)
    assert twins.choose(plain=0.001, fast=0.0011) == "fast"
    calls = twins.calls.total()
    new_process()
    assert twins.choose(plain=0.001, fast=0.0011) == "fast"
    assert twins.calls.total() == calls
    tuning.use({"a": "plain"})
    assert twins.choose(plain=0.001, fast=0.0011) == "plain"
    assert tuning.choices() == {"a": "plain"}


@pytest.mark.alone
def test_bursts_of_other_work_do_not_count(fresh: Path) -> None:
    """What is preempted waits without using the processor, like one that sleeps."""
    matrix = torch.randn(200, 200)

    def run(twin: str) -> None:
        for _ in range(5 if twin == "fast" else 20):
            matrix @ matrix
        if twin == "fast":
            time.sleep(0.02)

    estimates = {"plain": 0.01, "fast": 0.011}
    assert tuning.choose("a", estimates, estimates.__getitem__, run) == "fast"


@pytest.mark.alone
def test_busy_machine_makes_the_same_choices(fresh: Path) -> None:
    """Three programs that never rest beside the first use, in inference, of shapes that are measured."""
    shapes = ((1, 28, 16, 3, 1, 1), (32, 20, 64, 4, 2, 0), (32, 12, 64, 5, 1, 0))

    @torch.no_grad()
    def choose_all() -> dict[str, str]:
        fresh.unlink(missing_ok=True)
        new_process()
        for channels, size, outputs, kernel, stride, padding in shapes:
            conv = nn.Conv2d(channels, outputs, kernel, stride, padding)
            for batch in (1, 16):
                convolution.chosen(conv, torch.rand(batch, channels, size, size))
        return tuning.choices()

    quiet = choose_all()
    assert any(entry["by"] == "processor time" for entry in stored(fresh).values())
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        assert [choose_all() for _ in range(3)] == [quiet] * 3
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_wrong_choice_of_an_earlier_process_heals(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch, plain=0.004, fast=0.001)
    twins.choose(plain=4, fast=1)
    edit(fresh, lambda choices: choices["a"].update(choice="plain", checked=LONG_AGO))
    new_process()
    for _ in range(tuning.CHECKED_AFTER + 1):
        assert twins.choose(plain=4, fast=1) == "plain", "never in the middle of a run"
    found = stored(fresh)["a"]
    assert (found["choice"], found["before"]) == ("fast", "plain")
    assert found["measured_ms"] == {"plain": 4.0, "fast": 1.0}
    new_process()
    assert twins.choose(plain=4, fast=1) == "fast"


def test_check_is_rare_and_short(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch, plain=0.004, fast=0.001)
    for name in "ab":
        twins.choose(name, plain=4, fast=1)
    new_process()
    for _ in range(2 * tuning.CHECKED_AFTER):
        twins.choose("a", plain=4, fast=1)
    assert not twins.calls, "checked a moment ago"
    edit(fresh, lambda choices: [choice.update(checked=LONG_AGO) for choice in choices.values()])
    new_process()
    for _ in range(tuning.CHECKED_AFTER - 1):
        twins.choose("a", plain=4, fast=1)
    assert not twins.calls, "too short a process"
    for _ in range(2 * tuning.CHECKED_AFTER):
        for name in "ab":
            twins.choose(name, plain=4, fast=1)
    assert twins.calls == {"plain": 2, "fast": 2}, "one choice in a process, two calls of each twin"
    assert stored(fresh)["a"]["checked"] != LONG_AGO
    assert stored(fresh)["b"]["checked"] == LONG_AGO


@pytest.mark.parametrize(
    "content",
    [
        *["", "{", "[]", "null", '{"format": FORMAT}', '{"format": FORMAT, "machines": 3}'],
        '{"format": 1, "machines": {}}',
        '{"AMD EPYC, 2 cores, torch 2.13.0": {"a, 1 threads": "plain"}}',
        '{"format": FORMAT, "machines": {"MACHINE": 7}}',
        '{"format": FORMAT, "machines": {"MACHINE": {"choices": []}}}',
        '{"format": FORMAT, "machines": {"MACHINE": {"choices": {"a": "plain"}, "rates": {"products": "x"}}}}',
        '{"format": FORMAT, "machines": {"MACHINE": {"choices": {"a": {"choice": "no such twin"}}}}}',
        '{"format": FORMAT, "machines": {"MACHINE": {"choices": {"a": {"choice": "plain", "checked": 3}}}}}',
    ],
)
def test_damaged_or_old_file_is_ignored_and_rewritten(
    content: str, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.parent.mkdir()
    fresh.write_text(content.replace("MACHINE", evidence.machine()).replace("FORMAT", str(evidence.FORMAT)))
    twins = Twins(monkeypatch, plain=1, fast=1)
    assert twins.choose(plain=3, fast=1) == "fast"
    assert stored(fresh)["a"]["choice"] == "fast"
    assert [path.name for path in fresh.parent.iterdir() if path.name.startswith(".writing")] == []


def test_evidence_of_other_versions_is_not_taken(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(monkeypatch, plain=1, fast=1)
    twins.choose(plain=3, fast=1)
    monkeypatch.setattr(evidence, "machine", lambda: "another")
    new_process()
    assert twins.choose(plain=1, fast=3) == "plain"
    assert len(json.loads(fresh.read_text())["machines"]) == 2


def test_evidence_of_other_vectors_is_not_taken(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines of different hosts call their processor by the same name, and share a folder."""
    found = {}
    for vectors in ("AVX2", "AVX512"):
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda vectors=vectors: vectors)
        evidence.machine.cache_clear()
        evidence.store("choices", {"a": vectors})
        found[evidence.machine()] = evidence.read()["choices"]
    evidence.machine.cache_clear()
    assert list(found.values()) == [{"a": "AVX2"}, {"a": "AVX512"}]


def test_folder_that_cannot_be_written_only_means_choosing_again(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evidence, "path", lambda: Path("/dev/null/kernels.json"))
    evidence._tell.cache_clear()
    twins = Twins(monkeypatch, plain=1, fast=1)
    assert [twins.choose(name, plain=3, fast=1) for name in "ab"] == ["fast", "fast"]
    (record,) = caplog.records
    assert "/dev/null/kernels.json cannot be written" in record.message


def test_many_processes_may_write_at_once(fresh: Path) -> None:
    code = """
import sys
from pathlib import Path
from torchcaps.kernels import evidence
evidence.path = lambda: Path(sys.argv[1])
for i in range(20):
    evidence.store("choices", {f"{sys.argv[2]} {i}": {"choice": "plain"}})
"""
    command = [sys.executable, "-c", code, str(fresh)]
    writers = [subprocess.Popen([*command, str(i)], env=os.environ | {"OMP_NUM_THREADS": "1"}) for i in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(stored(fresh)) == 60


def test_time_passes_while_a_profiler_has_set_a_timer() -> None:
    """The clock of processor time moves at ticks only then, and a cost of nothing has no logarithm."""
    handler = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_PROF, 100)
    try:
        assert all(processor_time.spent(lambda: None) > 0 for _ in range(100))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def test_threads_are_as_before_after_measuring(fresh: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen: list[int] = []
    tuning.measure(["plain"], lambda twin: seen.append(torch.get_num_threads()))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
