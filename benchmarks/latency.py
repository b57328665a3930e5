"""How long one image takes: of every model, of `torchcaps predict`, and of the playground's answer.

    python benchmarks/latency.py            # writes results/bench/latency.json

Each is measured with the package's kernels and with plain PyTorch (`TORCHCAPS_KERNELS=plain`), in processes of their
own that take turns. "Cold" is the first call of a process with an empty cache folder, after the imports: the median of
many processes, since waking a second thread takes 0 to 40 ms of chance. "Warm" is the median over turns of many calls,
since threads that have slept may share a processor at first (see `app/bench.py`). `predict` is timed from the start of
its process to its end, with an empty cache folder and again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from first_use import Worker
from PIL import Image
from serving import serving

from torchcaps.app.bench import TURN
from torchcaps.core.files import write_json
from torchcaps.models.registry import MODELS
from torchcaps.training.runs import manifest

RESULT = Path(__file__).parents[1] / "results" / "bench" / "latency.json"
FLAGSHIP = "capsnet-multimnist-fine"
TWINS = {"plain": "plain", "ours": "auto"}
"""By what `TORCHCAPS_KERNELS` is."""
FIRST_CALLS = """
import os, sys, tempfile, time
from torchcaps.app import bench, twins
twin = sys.argv[1]
for name in sys.stdin:
    read, write = os.pipe()
    with tempfile.TemporaryDirectory() as cache:
        if os.fork() == 0:
            os.environ["XDG_CACHE_HOME"] = cache
            work = twins.inference(name.strip(), 1, twin)
            time.sleep(bench.PAUSE)
            start = time.perf_counter()
            work()
            os.write(write, str(time.perf_counter() - start).encode())
            os._exit(0)
        os.close(write)
        print(os.read(read, 99).decode(), flush=True)
        os.close(read)
        os.wait()
"""


class FirstCalls:
    """First calls of one twin, each in a new copy of a process that has imported everything and computed nothing."""

    def __init__(self, twin: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FIRST_CALLS, twin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"TORCHCAPS_KERNELS": TWINS[twin]},
        )  # fmt: skip

    def seconds(self, name: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def cold(names: list[str], tries: int) -> dict[str, dict[str, float]]:
    """Milliseconds of first calls of each model, twin by twin in turns: the median."""
    first = {twin: FirstCalls(twin) for twin in TWINS}
    found = {}
    for name in names:
        taken: dict[str, list[float]] = {twin: [] for twin in TWINS}
        for attempt in range(tries):
            for twin in list(TWINS)[:: 1 if attempt % 2 else -1]:
                taken[twin].append(first[twin].seconds(name))
        found[name] = {f"{twin}_cold_ms": round(statistics.median(taken[twin]) * 1e3, 1) for twin in TWINS}
    for process in first.values():
        process.close()
    return found


def of_model(name: str, repeats: int, cold: dict[str, float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        workers = {twin: Worker(name, 1, twin, cache, "inference") for twin in TWINS}
        for worker in workers.values():
            worker.step()
        times: dict[str, list[float]] = {twin: [] for twin in TWINS}
        for repeat in range(repeats):
            for twin in list(TWINS)[:: 1 if repeat % 2 else -1]:
                times[twin].append(workers[twin].step(TURN))
        for worker in workers.values():
            worker.close()
    warm = {twin: statistics.median(values) for twin, values in times.items()}
    return {
        "name": name,
        **cold,
        **{f"{twin}_ms": round(warm[twin] * 1e3, 2) for twin in TWINS},
        "ratio": round(warm["plain"] / warm["ours"], 2),
    }


def of_predict(repeats: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.png"
        Image.effect_noise((36, 36), 64).save(image)
        command = [sys.executable, "-m", "torchcaps", "predict", FLAGSHIP, str(image), "--json"]
        for twin, kernels in TWINS.items():
            times = []
            with tempfile.TemporaryDirectory() as cache:
                environment = os.environ | {"XDG_CACHE_HOME": cache, "TORCHCAPS_KERNELS": kernels}
                for _ in range(1 + repeats):
                    began = time.perf_counter()
                    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
                    times.append(time.perf_counter() - began)
            found |= {f"{twin}_cold_s": round(times[0], 2), f"{twin}_s": round(statistics.median(times[1:]), 2)}
    return found


def of_playground(repeats: int) -> dict[str, Any]:
    """From sending a question, where two digits are, to the last byte of the answer."""
    found: dict[str, Any] = {}
    for twin, kernels in TWINS.items():
        with tempfile.TemporaryDirectory() as cache:
            os.environ |= {"XDG_CACHE_HOME": cache, "TORCHCAPS_KERNELS": kernels}
            with serving(FLAGSHIP) as place:
                times = [_answer(place.port, place.token) for _ in range(1 + repeats)]
        found |= {f"{twin}_cold_ms": times[0], f"{twin}_ms": round(statistics.median(times[1:]), 1)}
    return found


def _answer(port: int, token: str) -> float:
    pixels = [[(row * column) % 7 / 6 for column in range(36)] for row in range(36)]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    connection = HTTPConnection("127.0.0.1", port)
    began = time.perf_counter()
    connection.request("POST", "/api/look", json.dumps({"image": [pixels]}), headers)
    answer = connection.getresponse()
    said = answer.read()
    took = round((time.perf_counter() - began) * 1e3, 1)
    if answer.status != 200:
        raise SystemExit(f"the playground answered {answer.status}: {said[:200]!r}")
    time.sleep(0.05)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tries", type=int, default=21, help="first calls of each model")
    arguments = parser.parse_args()
    start = time.perf_counter()
    named = [name for name in MODELS if name not in ("capsnet", "cnn")]
    first = cold(named, arguments.tries)
    rows = [of_model(name, arguments.repeats, first[name]) for name in named]
    result = {"models": rows, "predict": of_predict(5), "playground": of_playground(arguments.repeats)}
    print(json.dumps(result, indent=2))
    origin = manifest({"train": {"seed": 0}}, {})
    command = " ".join(["python", "benchmarks/latency.py", *sys.argv[1:]])
    write_json(RESULT, {**origin, "command": command, **result, "seconds": round(time.perf_counter() - start, 1)})


if __name__ == "__main__":
    main()
