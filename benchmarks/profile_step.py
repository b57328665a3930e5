"""Where a training step's time goes, plain and ours: `python benchmarks/profile_step.py`.

Writes `results/bench/profile.json`: for each network and twin the operators with the most time of their own. Each twin
has a process of its own, as in the benchmarks.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torchcaps.core.files import read_json, write_json
from torchcaps.training.runs import manifest

RESULT = Path(__file__).parent.parent / "results" / "bench" / "profile.json"
NETWORKS = ("capsnet-mnist", "capsnet-multimnist-small")
TWINS = {"plain": {"TORCHCAPS_KERNELS": "plain", "THP_MEM_ALLOC_ENABLE": "0"}, "ours": {}}
BATCH, WARM_UP, STEPS = 128, 8, 5


def profile(network: str, twin: str, path: Path) -> None:
    """Milliseconds a step of every operator that has a hundredth of the step."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    from torchcaps.app.twins import training
    from torchcaps.kernels.workspace import keep_freed_memory

    if twin == "ours":
        keep_freed_memory()
    step = training(network, BATCH, twin)  # pyright: ignore[reportArgumentType]
    for _ in range(WARM_UP):
        step()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    undisturbed = (time.perf_counter() - start) / STEPS
    with profiler(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(STEPS):
            step()
    spent = {event.key: event.self_cpu_time_total / 1e3 / STEPS for event in found.key_averages()}
    total = sum(spent.values())
    rows = sorted(((ms, name) for name, ms in spent.items() if ms > total / 100), reverse=True)
    shares = [{"operator": name.removeprefix("aten::"), "ms": round(ms, 2)} for ms, name in rows]
    write_json(path, {"step_ms": round(undisturbed * 1e3, 1), "profiled_ms": round(total, 1), "rows": shares})


def main() -> None:
    if len(sys.argv) > 1:
        return profile(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    start = time.perf_counter()
    profiles: dict[str, dict[str, Any]] = {}
    for network in NETWORKS:
        profiles[network] = {}
        for twin, variables in TWINS.items():
            part = RESULT.with_suffix(".part")
            subprocess.run([sys.executable, __file__, network, twin, part], env={**os.environ, **variables}, check=True)
            profiles[network][twin] = read_json(part)
            part.unlink()
    seconds = round(time.perf_counter() - start, 1)
    origin = {**manifest({"train": {"seed": 0}}, {}), "command": "python benchmarks/profile_step.py"}
    write_json(RESULT, {**origin, "seconds": seconds, "batch": BATCH, "profiles": profiles})


if __name__ == "__main__":
    main()
