"""Load: 32 clients for a minute against the playground's server on loopback.

    python benchmarks/serve_load.py [RUN-or-MODEL] [--clients 32] [--seconds 60]

Each client keeps one connection and behaves like a page whose user drags: it asks again PAUSE after every answer,
mostly for a look, sometimes for a decoding or a trace. Reported are the requests, errors, latency (from sending to the
last byte) and the server's resident memory, second by second. Writes results/serve/load.json.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import statistics
import sys
import time
from typing import Any

from serving import RESULTS, Process, serving

from torchcaps.core.machine import processor

PAUSE = 0.1
SETTLED = 10
MIX = {"look": 0.8, "decode": 0.15, "routing": 0.05}


async def call(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], port: int, path: str, body: Any) -> int:
    """One request on an open connection; the status of the answer."""
    reader, writer = streams
    content = json.dumps(body).encode()
    writer.write(
        f"POST /api/{path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n".encode()
        + content
    )
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(length)
    return int(head.split()[1])


async def client(port: int, about: dict[str, Any], seed: int, until: float, seen: list[tuple[str, int, float]]) -> None:
    dice = random.Random(seed)
    c, h, w = about["image"]
    streams = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(dice.random() * PAUSE)
    while time.monotonic() < until:
        path = dice.choices(list(MIX), list(MIX.values()))[0]
        body: dict[str, Any] = {"image": base64.b64encode(dice.randbytes(c * h * w)).decode()}
        if path == "decode":
            vector = [dice.uniform(-0.5, 0.5) for _ in range(about["dimensions"])]
            body = {"label": dice.randrange(len(about["classes"])), "vectors": [vector] * 9}
        began = time.perf_counter()
        status = await call(streams, port, path, body)
        seen.append((path, status, time.perf_counter() - began))
        await asyncio.sleep(PAUSE)
    streams[1].close()


async def load(process: Process, about: dict[str, Any], clients: int, seconds: float) -> dict[str, Any]:
    seen: list[tuple[str, int, float]] = []
    until = time.monotonic() + seconds
    tasks = [asyncio.create_task(client(process.port, about, seed, until, seen)) for seed in range(clients)]
    memory = []
    while time.monotonic() < until:
        memory.append(round(process.resident_mb(), 1))
        await asyncio.sleep(1)
    await asyncio.gather(*tasks)
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(seen),
        "errors": sum(status != 200 for _, status, _ in seen),
        "requests_per_second": round(len(seen) / seconds, 1),
        **{path: latency([spent for name, _, spent in seen if name == path]) for path in MIX},
        "memory_mb": memory,
        "memory_growth_mb": round(max(memory[SETTLED:]) - memory[SETTLED], 1) if len(memory) > SETTLED else None,
    }


def latency(spent: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(spent, n=100)
    return {"median_ms": round(cuts[49] * 1000, 1), "p99_ms": round(cuts[98] * 1000, 1)}


def describe(port: int) -> dict[str, Any]:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/api/model") as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="capsnet-multimnist-small")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    with serving(args.run) as process:
        about = describe(process.port)
        result = asyncio.run(load(process, about, args.clients, args.seconds))
    machine = {"processor": processor(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    result = {"command": " ".join(["python", *sys.argv]), "model": about["name"], **result, "machine": machine}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "load.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "memory_mb"}, indent=2))
    if result["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
