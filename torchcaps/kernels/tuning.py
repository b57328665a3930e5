"""Which kernel runs where: decided by computed cost, in inference by processor time where that is close.

The cost of every twin is computed first (`cost.py`), from its shape and from constants. In training that decides:
another twin rounds differently, so a choice by the clock would make equal seeds end in other weights whenever two twins
measure alike. In inference the twins that are close are measured against each other by processor time, which other
programs do not add to, in several interleaved rounds, the least of which counts; the computed favourite keeps its place
unless another is clearly faster. Nothing is measured for one image, which somebody waits for, nor where measuring takes
longer than `MEASURED_SECONDS`.

Choices are kept with their evidence (`evidence.py`). A long process checks one of those that an earlier process made a
day before or longer; one that takes `WRONG` times as long as another, by processor time, is changed for the processes
after it: so a machine whose costs are not the computed ones gets its own. Within a process, and in a run that is
continued, a choice never changes.

What remains: equal seeds end in other bytes before and after such a change. And two processes that measure the same
inference for the first time may choose differently, if one of two twins is very nearly `CLEAR` times as fast.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from torchcaps.core.errors import UserError
from torchcaps.kernels import evidence
from torchcaps.kernels.processor_time import one_thread, spent

Mode = Literal["plain", "fast", "auto"]
MODES = get_args(Mode)
VARIABLE = "TORCHCAPS_KERNELS"
CLOSE = 1.3
"""Twins whose computed cost is within this factor of the least are measured."""
CLEAR = 1.15
"""The computed favourite is left only for a twin that measures this many times faster."""
WRONG = 1.3
"""A remembered choice that measures this many times slower than another is looked at again."""
ROUNDS, LEAST_ROUNDS, MEASURED_SECONDS = 7, 3, 0.25
"""Rounds of measuring; fewer if they take longer than this; none if so many would, by computed cost."""
FIRST = 2
"""As many rounds as the first calls take, which find no memory and no transforms of weights yet."""
CHECKED_AFTER, CHECKED_EVERY = 100, 24 * 3600
"""Calls in a process after which a remembered choice is checked, if the last check is this many seconds old."""

_choices: dict[str, str] = {}
_calls: Counter[str] = Counter()
_inherited: dict[str, dict[str, Any]] = {}
"""Evidence of choices that an earlier process made, until one of them is checked."""
_lock = threading.RLock()


def mode() -> Mode:
    """`TORCHCAPS_KERNELS`: the plain twins, the kernels wherever they can, or whichever costs least."""
    value = os.environ.get(VARIABLE) or "auto"
    if value not in MODES:
        raise UserError(f"{VARIABLE} must be plain, fast or auto, not '{value}'")
    return value  # pyright: ignore[reportReturnType]


def traced() -> bool:
    """Whether somebody is looking at operators instead of numbers: export, compilation, `torch.func`."""
    return (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or torch._C._are_functorch_transforms_active()
    )


def eligible(*tensors: Tensor, operator: bool = False) -> bool:
    """Whether a kernel may compute with these: numbers, of one precision that it knows, that nobody is tracing.

    An `operator` of `torch.library` may be compiled into a graph, but not exported to where it is not known.
    """
    first = tensors[0]
    compiled = operator and torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return (
        mode() != "plain"
        and (compiled or not traced())
        and first.dtype in (torch.float32, torch.float64)
        and all(tensor.dtype == first.dtype for tensor in tensors)
        and first.numel() > 0
        and first.device.type != "meta"
        and not torch.is_autocast_enabled(first.device.type)
    )


def choices() -> dict[str, str]:
    """What was chosen so far in this process, by name. A run that stores this can be continued bit for bit."""
    return dict(_choices)


def use(choices: Mapping[str, str]) -> None:
    """Choose these, whatever they cost."""
    _choices.update(choices)


def known(name: str, run: Callable[[str], object] | None) -> str | None:
    """What was chosen in this process; one of the choices that came from an earlier one is checked on the way."""
    if name in _inherited and run is not None:
        _calls[name] += 1
        if _calls[name] == CHECKED_AFTER:
            _check(name, run)
    return _choices.get(name)


def choose(
    name: str,
    twins: Iterable[str],
    estimate: Callable[[str], float],
    run: Callable[[str], object] | None,
    may_measure: bool = True,
) -> str:
    """The twin that takes least for `name`, which says everything that matters but the machine.

    `estimate` computes what a twin takes, `run` does it once. Where it may not be measured the estimates decide, and a
    later process may check the choice; where there is no `run`, they decide for this process alone. The first of the
    twins must be the plain one.
    """
    found = known(name, run)
    if found is not None:
        return found
    with _lock:
        if name not in _choices:
            estimates = {twin: estimate(twin) for twin in twins}
            entry = evidence.read().get("choices", {}).get(name)
            if holds(entry, estimates):
                _inherited[name] = entry
            else:
                entry = decide(estimates, run if may_measure else None)
                if run is not None:
                    evidence.store("choices", {name: entry})
            _choices[name] = entry["choice"]
    return _choices[name]


def decide(estimates: Mapping[str, float], run: Callable[[str], object] | None) -> dict[str, Any]:
    """The choice and its evidence; by the estimates alone where `run` is not given."""
    favourite = _favourite(estimates)
    found: dict[str, Any] = {"choice": favourite, "by": "computed cost", "estimated_ms": _ms(estimates)}
    twins = to_measure(estimates)
    if twins and run is not None:
        seconds, rounds = measure(twins, run)
        fastest = min(seconds, key=lambda twin: seconds[twin])
        if CLEAR * seconds[fastest] < seconds[favourite]:
            found["choice"] = fastest
        found |= {"by": "processor time", "measured_ms": _ms(seconds), "rounds": rounds}
    return found | {"date": evidence.now(), "checked": evidence.now(), "threads": torch.get_num_threads()}


def to_measure(estimates: Mapping[str, float]) -> list[str]:
    """The twins that computed cost does not tell apart, if measuring them, on one thread, does not take too long."""
    close = [twin for twin in estimates if estimates[twin] <= CLOSE * min(estimates.values())]
    seconds = (FIRST + LEAST_ROUNDS) * torch.get_num_threads() * sum(estimates[twin] for twin in close)
    return close if len(close) > 1 and seconds <= MEASURED_SECONDS else []


def _favourite(estimates: Mapping[str, float]) -> str:
    return min(estimates, key=lambda twin: estimates[twin])


def measure(twins: Iterable[str], run: Callable[[str], object], rounds: int = ROUNDS) -> tuple[dict[str, float], int]:
    """The least processor time of each twin, and how many rounds were made. The first call of each does not count."""
    least = dict.fromkeys(twins, float("inf"))
    total, done = 0.0, 0
    with one_thread():
        for twin in least:
            run(twin)
        while done < rounds and (done < LEAST_ROUNDS or total < MEASURED_SECONDS):
            for twin in least:
                seconds = spent(partial(run, twin))
                least[twin] = min(least[twin], seconds)
                total += seconds
            done += 1
    return least, done


def _check(name: str, run: Callable[[str], object]) -> None:
    """Whether a choice of an earlier process still holds: once in a process, two calls of each of two twins."""
    with _lock:
        known = _inherited.pop(name, None)
        if known is None or _age(known["checked"]) < CHECKED_EVERY:
            return
        _inherited.clear()
        costs = known.get("measured_ms") or known["estimated_ms"]
        others = sorted((twin for twin in costs if twin != known["choice"]), key=lambda twin: costs[twin])
        if not others:
            return
        twins = [known["choice"], others[0]]
        seconds, _ = measure(twins, run, rounds=1)
        known = known | {"checked": evidence.now()}
        if seconds[twins[0]] > WRONG * seconds[twins[1]]:
            seconds, rounds = measure(twins, run)
            fastest = min(seconds, key=lambda twin: seconds[twin])
            if CLEAR * seconds[fastest] < seconds[known["choice"]]:
                known |= {"choice": fastest, "by": "processor time, after a check", "before": known["choice"]}
                known |= {"measured_ms": _ms(seconds), "rounds": rounds, "date": evidence.now()}
        evidence.store("choices", {name: known})


def holds(entry: Any, estimates: Mapping[str, float]) -> bool:
    """Whether a stored choice was made among the twins that can be used now, at the costs that are computed now.

    A twin that was missing then, as where there was no compiler yet, may be the best one.
    """
    try:
        measured = (entry.get("measured_ms") or {}).values()
        same = entry["choice"] in estimates and entry["estimated_ms"] == _ms(estimates)
        return same and all(cost >= 0 for cost in measured) and _age(entry["checked"]) >= 0
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _age(date: str) -> float:
    return max(0.0, (datetime.fromisoformat(evidence.now()) - datetime.fromisoformat(date)).total_seconds())


def _ms(seconds: Mapping[str, float]) -> dict[str, float]:
    return {twin: round(1e3 * value, 4) for twin, value in seconds.items()}
