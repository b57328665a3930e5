"""Train on two machines, which are two network namespaces of this one; lose a worker, then the cable between them.

sudo python benchmarks/two_machines.py        # needs Linux, root and iproute2; writes results/two-machines.json

Both machines run the command of `docs/many-machines.md`. Their run folder is one that both see, or one for each. After
a worker is killed the training has to end in the same bytes as an undisturbed one; after the cable is cut, every worker
has to end with one line.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kill_worker import NETWORK, TRAINING, _pid, same_bytes, step_of, torchrun

NAMES = ("torchcaps-one", "torchcaps-two")
ADDRESSES = ("10.250.77.1", "10.250.77.2")
STEPS, KILLED_AT, CUT_AT, TIMEOUT = 40, 15, 10, 20
WORKER = str(Path(__file__).with_name("kill_worker.py"))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def machines() -> Iterator[None]:
    """Two namespaces, each with its end of a virtual cable and its own loopback."""
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        ip("netns", "add", name)
    try:
        ip("link", "add", "cable", "netns", NAMES[0], "type", "veth", "peer", "name", "cable", "netns", NAMES[1])
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip("-n", name, "addr", "add", f"{address}/30", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in NAMES:
            ip("netns", "del", name)


def start(outs: list[Path], port: int, timeout: int, restarts: int) -> list[subprocess.Popen[bytes]]:
    """torchrun on each machine, one worker each."""
    started = []
    for number, (name, out) in enumerate(zip(NAMES, outs, strict=True)):
        address = ["--master-addr", ADDRESSES[0], "--master-port", str(port)]
        place = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1", *address]
        command = [*torchrun(*place, "--max-restarts", str(restarts))[:-1], WORKER]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "cable"}
        environment["TORCHCAPS_TIMEOUT"] = str(timeout)
        with open(f"{out}.log-{number}", "wb") as log:
            inside = ["ip", "netns", "exec", name, *command, "--work", str(out), "--steps", str(STEPS)]
            started.append(subprocess.Popen(inside, stdout=log, stderr=log, env=environment))
    return started


def train(outs: list[Path], port: int, kill: bool) -> None:
    processes, killed = start(outs, port, 120, int(kill)), False
    while any(process.poll() is None for process in processes):
        if kill and not killed and step_of(outs[0]) >= KILLED_AT:
            os.kill(_pid(outs[1], 1), signal.SIGKILL)
            killed = True
        time.sleep(0.05)
    if any(process.returncode for process in processes) or killed != kill:
        sys.exit("\n".join(Path(f"{out}.log-{n}").read_text()[-3000:] for n, out in enumerate(outs)))


def cut(outs: list[Path], port: int) -> dict[str, float | str]:
    """Pull the cable while they train: how long until the workers end, and what the first of them says."""
    processes = start(outs, port, TIMEOUT, 0)
    while step_of(outs[0]) < CUT_AT:
        if any(process.poll() is not None for process in processes):
            sys.exit(Path(f"{outs[0]}.log-0").read_text()[-3000:])
        time.sleep(0.02)
    workers = [_pid(out, rank) for rank, out in enumerate(outs)]
    ip("-n", NAMES[0], "link", "set", "cable", "down")
    began = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() - began < 10 * TIMEOUT:
        time.sleep(0.1)
    seconds = time.monotonic() - began
    if any(Path(f"/proc/{pid}").exists() for pid in workers):
        sys.exit("a worker still waits")
    for process in processes:
        process.terminate()
        process.wait()
    ip("-n", NAMES[0], "link", "set", "cable", "up")
    said = [line for line in Path(f"{outs[0]}.log-0").read_text().splitlines() if "UserError" in line]
    return {"timeout": TIMEOUT, "seconds_until_all_workers_ended": round(seconds, 1), "said": said[-1] if said else ""}


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, machines():
        room = Path(folder)
        train([room / "whole", room / "whole"], 29511, kill=False)
        train([room / "shared", room / "shared"], 29512, kill=True)
        train([room / "one", room / "two"], 29513, kill=True)
        same = {name: same_bytes(room / "whole", room / out) for name, out in (("shared", "shared"), ("apart", "one"))}
        second = sorted(path.name for path in (room / "two").iterdir()) if (room / "two").exists() else []
        lost = cut([room / "cut", room / "cut"], 29514)
    result = {
        "command": "python benchmarks/two_machines.py",
        "configuration": {"model": "capsnet-mnist-small", "data": "mnist-mini", "overrides": NETWORK, **TRAINING},
        "machines": "two network namespaces joined by a veth pair, one worker each",
        "steps": STEPS,
        "seed": TRAINING["seed"],
        "worker_killed_at_step": KILLED_AT,
        "byte_identical": {"one folder for both": same["shared"], "a folder each": same["apart"]},
        "files_of_the_second_machine": second,
        "cable_cut": lost,
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result, indent=2))
    if not all(all(files.values()) for files in same.values()):
        sys.exit(1)
    Path("results/two-machines.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
