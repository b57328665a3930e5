"""Load: 32 honest clients for a minute in the company of 200 idle ones and 64 that do not read, on loopback.

    python benchmarks/serve_load.py [RUN-or-MODEL] [--clients 32] [--idle 200] [--deaf 64] [--seconds 60]

An honest client keeps one connection and behaves like a page whose user drags: it asks again PAUSE after every answer,
mostly for a look, sometimes for a decoding or a trace. Idle ones connect and send nothing, or half a header. Deaf ones
have the token, ask for a look and PIPELINED times for all samples, and read nothing. Both connect again as soon as they
are closed. Reported are the requests, errors, latency (from sending to the last byte), how often the others were
closed, and the server's resident memory, second by second. Writes results/serve/load.json.
"""

import argparse
import asyncio
import base64
import json
import multiprocessing
import os
import random
import select
import socket
import statistics
import sys
import time
from contextlib import suppress
from multiprocessing.synchronize import Event
from typing import Any

from serving import RESULTS, Process, serving

from torchcaps.core.machine import processor

PAUSE = 0.1
SETTLED = 10
MIX = {"look": 0.8, "decode": 0.15, "routing": 0.05}
PIPELINED = 16
DEAF_BUFFER = 4096


def request(place: Process, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    return (
        f"{'GET' if body is None else 'POST'} /api/{path} HTTP/1.1\r\nhost: 127.0.0.1:{place.port}\r\n"
        f"authorization: Bearer {place.token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    ).encode() + content


def hostile(port: int, idle: int, deaf: int, questions: bytes, stop: Event, closed: Any) -> None:
    """Idle and deaf clients, until told to stop; `closed` counts how many of each were closed by the server."""
    poll = select.poll()
    sockets: dict[int, tuple[socket.socket, str]] = {}

    def connect(kind: str) -> None:
        one = socket.socket()
        if kind == "deaf":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DEAF_BUFFER)
        one.connect(("127.0.0.1", port))
        with suppress(OSError):  # closed already: the poll says so
            one.sendall({"deaf": questions, "silent": b"", "half": b"GET /api/model HTTP/1.1\r\nhost: loc"}[kind])
        sockets[one.fileno()] = one, kind
        poll.register(one, 0 if kind == "deaf" else select.POLLIN)  # errors and hanging up are always reported

    for number in range(idle):
        connect("half" if number % 2 else "silent")
    for _ in range(deaf):
        connect("deaf")
    while not stop.is_set():
        for number, _ in poll.poll(100):
            one, kind = sockets.pop(number)
            poll.unregister(one)
            one.close()
            closed[1 if kind == "deaf" else 0] += 1
            connect(kind)


async def call(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], asked: bytes) -> int:
    """One request on an open connection; the status of the answer."""
    reader, writer = streams
    writer.write(asked)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(length)
    return int(head.split()[1])


async def client(
    place: Process, about: dict[str, Any], seed: int, until: float, seen: list[tuple[str, int, float]]
) -> None:
    dice = random.Random(seed)
    c, h, w = about["image"]
    streams = await asyncio.open_connection("127.0.0.1", place.port)
    await asyncio.sleep(dice.random() * PAUSE)
    while time.monotonic() < until:
        path = dice.choices(list(MIX), list(MIX.values()))[0]
        body: dict[str, Any] = {"image": base64.b64encode(dice.randbytes(c * h * w)).decode()}
        if path == "decode":
            vector = [dice.uniform(-0.5, 0.5) for _ in range(about["dimensions"])]
            body = {"label": dice.randrange(len(about["classes"])), "vectors": [vector] * 9}
        asked = request(place, path, body)
        began = time.perf_counter()
        try:
            status = await call(streams, asked)
        except (OSError, asyncio.IncompleteReadError):  # an honest client that was closed is an error
            status = 0
            streams = await asyncio.open_connection("127.0.0.1", place.port)
        seen.append((path, status, time.perf_counter() - began))
        await asyncio.sleep(PAUSE)
    streams[1].close()


async def load(process: Process, about: dict[str, Any], clients: int, seconds: float) -> dict[str, Any]:
    seen: list[tuple[str, int, float]] = []
    until = time.monotonic() + seconds
    tasks = [asyncio.create_task(client(process, about, seed, until, seen)) for seed in range(clients)]
    memory, files = [], []
    while time.monotonic() < until:
        memory.append(round(process.resident_mb(), 1))
        files.append(process.open_files())
        await asyncio.sleep(1)
    await asyncio.gather(*tasks)
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(seen),
        "errors": sum(status != 200 for _, status, _ in seen),
        "requests_per_second": round(len(seen) / seconds, 1),
        "all": latency([spent for _, _, spent in seen]),
        **{path: latency([spent for name, _, spent in seen if name == path]) for path in MIX},
        "most_open_files": max(files),
        "log_bytes": process.log_bytes(),
        "memory_mb": memory,
        "memory_growth_mb": round(max(memory[SETTLED:]) - memory[SETTLED], 1) if len(memory) > SETTLED else None,
    }


def latency(spent: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(spent, n=100)
    return {"median_ms": round(cuts[49] * 1000, 1), "p99_ms": round(cuts[98] * 1000, 1)}


def describe(place: Process) -> dict[str, Any]:
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{place.port}/api/model?token={place.token}") as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="capsnet-multimnist-fine")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--deaf", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    with serving(args.run) as process:
        about = describe(process)
        c, h, w = about["image"]
        look = request(process, "look", {"image": base64.b64encode(bytes(c * h * w)).decode()})
        questions = look + request(process, "samples") * PIPELINED
        stop, closed = multiprocessing.Event(), multiprocessing.Array("l", 2)
        others = multiprocessing.Process(
            target=hostile, args=(process.port, args.idle, args.deaf, questions, stop, closed), daemon=True
        )
        others.start()
        result = asyncio.run(load(process, about, args.clients, args.seconds))
        stop.set()
        others.join(10)
    company = {"idle": args.idle, "deaf": args.deaf, "idle_closed": closed[0], "deaf_closed": closed[1]}
    machine = {"processor": processor(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
    command = " ".join(["python", *sys.argv])
    result = {"command": command, "model": about["name"], **company, **result, "machine": machine}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "load.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "memory_mb"}, indent=2))
    if result["errors"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
