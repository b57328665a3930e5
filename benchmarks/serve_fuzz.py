"""Hostile input: fuzzed requests against the playground's server, none of which may hang it, break it or leak.

    python benchmarks/serve_fuzz.py [RUN-or-MODEL] [--requests 10000] [--seed 0]

Sizes, types, NaN, nesting, truncated and oversized pictures, broken HTTP, strange paths and headers. Writes
results/serve/fuzz.json. The tests run a shorter, seeded version of the same requests.
"""

import argparse
import base64
import io
import json
import random
import re
import socket
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from PIL import Image
from serving import RESULTS, serving

TIMEOUT = 30.0
LEAKS = re.compile(rb"Traceback|File \"|\.py\b|site-packages|/torchcaps/|0x[0-9a-f]{6}")
SETTLED = 1000
MOST_GROWTH_MB = 64


class Attempt(NamedTuple):
    kind: str
    raw: bytes
    whole: bool = True
    """Whether it is HTTP that ends where it says it does, and so deserves an answer."""


class Fuzzer:
    """A stream of requests that is decided by its seed. `image` is the shape that the model takes.

    With a `token`, nearly all requests have it, so that they get further than the door; some have half of it.
    """

    def __init__(self, seed: int, image: tuple[int, int, int], port: int, token: str | None = None) -> None:
        self.dice = random.Random(seed)
        self.image, self.port, self.token = image, port, token
        self.kinds: list[Callable[[], Attempt]] = [
            self.mutated_json,
            self.mutated_json,
            self.nested,
            self.text,
            self.garbage,
            self.truncated_picture,
            self.damaged_picture,
            self.huge_picture,
            self.path,
            self.headers,
            self.broken_http,
            self.cut_off,
        ]

    def attempts(self, count: int) -> Iterator[Attempt]:
        for _ in range(count):
            yield self.dice.choice(self.kinds)()

    def request(
        self, kind: str, path: str, body: bytes, method: str = "POST", content_type: str = "application/json"
    ) -> Attempt:
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nconnection: close\r\n{self.pass_()}"
            f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return Attempt(kind, head.encode("latin-1", "replace") + body)

    def pass_(self) -> str:
        if self.token is None:
            return ""
        shown = self.token if self.dice.random() < 0.95 else self.token[: self.dice.randrange(len(self.token))]
        return self.dice.choice([f"authorization: Bearer {shown}\r\n", f"cookie: torchcaps-{self.port}={shown}\r\n"])

    def valid(self) -> tuple[str, dict[str, Any]]:
        c, h, w = self.image
        as_text = base64.b64encode(self.dice.randbytes(c * h * w)).decode()
        as_lists = [[[round(self.dice.random(), 2) for _ in range(w)] for _ in range(h)] for _ in range(c)]
        picture = self.dice.choice([as_text, as_lists, as_lists[0]])
        return self.dice.choice(
            [
                ("/api/look", {"image": picture}),
                ("/api/routing", {"image": picture, "parents": [1, 2]}),
                ("/api/decode", {"label": 3, "vectors": [[0.1] * 16] * self.dice.randint(1, 9)}),
            ]
        )

    def junk(self, depth: int = 0) -> Any:
        dice = self.dice
        if depth < 3 and dice.random() < 0.3:
            return [self.junk(depth + 1) for _ in range(dice.randint(0, 5))]
        if depth < 3 and dice.random() < 0.2:
            return {dice.choice(["image", "label", "x", ""]): self.junk(depth + 1)}
        return dice.choice(
            [None, True, False, 0, -1, 1, 10, 2**31, 2**63, -(2**70), 10**400, 0.5, 1e-320, 1e308, float("nan"),
             float("inf"), -float("inf"), "", "a", "💥", "\ud800", "\x00", "A" * dice.randint(1, 5000), "../etc"]
        )  # fmt: skip

    def mutated_json(self) -> Attempt:
        path, body = self.valid()
        for _ in range(self.dice.randint(1, 3)):
            self.mutate(body)
        return self.request("mutated json", path, json.dumps(body).encode())

    def mutate(self, node: Any) -> None:
        """Replace, drop, double or misplace something at a random depth."""
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = self.dice.choice(keys)
        if isinstance(node[key], dict | list) and self.dice.random() < 0.6:
            return self.mutate(node[key])
        action = self.dice.randrange(4)
        if action == 0:
            node[key] = self.junk()
        elif action == 1:
            del node[key]
        elif action == 2 and isinstance(node, list):
            node.append(node[key])
        elif isinstance(node[key], str):
            node[key] = node[key][: self.dice.randrange(len(node[key]) + 1)]
        else:
            node[key] = [node[key]] * self.dice.randint(0, 50)

    def nested(self) -> Attempt:
        depth = self.dice.choice([10, 1000, 100_000])
        opening, closing = self.dice.choice([("[", "]"), ('{"a":', "}"), ('{"image":[', "]}")])
        body = opening * depth + (closing * depth if self.dice.random() < 0.5 else "")
        return self.request("nested", "/api/look", body.encode())

    def text(self) -> Attempt:
        bodies = ["", "{}", "null", "NaN", '{"image": NaN}', '{"image": -Infinity}', "\ufeff{}", "1" * 5000, '"',
                  '{"image":"' + "A" * self.dice.choice([1, 5, 1728, 500_000, 1_500_000]) + '"}']  # fmt: skip
        return self.request("text", self.valid()[0], self.dice.choice(bodies).encode())

    def garbage(self) -> Attempt:
        path = self.dice.choice(["/api/look", "/api/picture", "/api/decode"])
        kind = self.dice.choice(["application/json", "image/png", "text/plain", "multipart/form-data", ""])
        size = self.dice.choice([1, 100, 10_000, 2_000_000])
        return self.request("garbage", path, self.dice.randbytes(size), content_type=kind)

    def picture(self) -> bytes:
        kind = self.dice.choice(["PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG"])
        mode = self.dice.choice(["L", "RGB", "1"] if kind in ("PPM", "JPEG") else ["L", "RGB", "RGBA", "P", "1"])
        file = io.BytesIO()
        size = self.dice.randint(1, 90), self.dice.randint(1, 90)
        Image.effect_noise(size, 80).convert(mode).save(file, kind)
        return file.getvalue()

    def truncated_picture(self) -> Attempt:
        picture = self.picture()
        return self.request("truncated picture", "/api/picture", picture[: self.dice.randrange(len(picture) + 1)])

    def damaged_picture(self) -> Attempt:
        picture = bytearray(self.picture())
        for _ in range(self.dice.randint(0, 20)):
            picture[self.dice.randrange(len(picture))] = self.dice.randrange(256)
        return self.request("damaged picture", "/api/picture", bytes(picture))

    def huge_picture(self) -> Attempt:
        """A PNG that says it has up to 2³¹ pixels a side."""
        sides = [self.dice.choice([0, 1, 3, 4096, 65_535, 2**31 - 1]) for _ in range(2)]
        header = struct.pack(">IIBBBBB", *sides, 8, 0, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(100_000))), (b"IEND", b"")]
        body = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )
        return self.request("huge picture", "/api/picture", body)

    def path(self) -> Attempt:
        paths = ["/", "/..", "/../../etc/passwd", "/js/..%2f..%2fserver.py", "/%00", "/js/%2e%2e/", "/api/",
                 "/api/look/", "/api/look?x=" + "a" * 5000, "/?token=wrong",
                 "/?token=" + "%ff" * 500, "/api/model?token=%00", "/api/%ff", "//", "/.git/config"]  # fmt: skip
        method = self.dice.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "FOO"])
        return self.request("path", self.dice.choice(paths), b"", method)

    def headers(self) -> Attempt:
        name = self.dice.choice(["origin", "content-type", "x-forwarded-for", "accept-encoding", "range", "cookie",
                                 "content-encoding", "upgrade", "expect", "host"])  # fmt: skip
        value = self.dice.choice(
            ["", "null", "http://evil.example", "gzip, br", "bytes=0-1", "a" * 20_000, "\xff\xfe", "websocket"]
        )
        start = f"GET /api/model HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nconnection: close\r\n{self.pass_()}"
        head = f"{start}{name}: {value}\r\n\r\n"
        return Attempt("headers", head.encode("latin-1"))

    def broken_http(self) -> Attempt:
        lines = [b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n",
                 b"POST /api/look HTTP/1.1\r\n",
                 b"GET / HTTP/1.1\r\nhost\r\n\r\n", self.dice.randbytes(200), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                 b"POST /api/look HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]  # fmt: skip
        return Attempt("broken http", self.dice.choice(lines), whole=False)

    def cut_off(self) -> Attempt:
        raw = self.mutated_json().raw
        return Attempt("cut off", raw[: self.dice.randrange(len(raw))], whole=False)


def send(port: int, raw: bytes, hang_up: bool = False) -> bytes:
    """Everything that the server answers until it closes, or HUNG if it does not."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        answer = bytearray()
        try:
            connection.sendall(raw)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                answer += chunk
        except TimeoutError:
            return b"HUNG"
        except OSError:
            pass
    return bytes(answer)


def problem(attempt: Attempt, answer: bytes) -> str | None:
    """What is wrong with an answer, if anything is."""
    if answer == b"HUNG":
        return "no end"
    status = re.match(rb"HTTP/1\.\d (\d{3})", answer)
    if status is None:
        return "no answer" if attempt.whole and b"\r\n\r\n" in attempt.raw and len(attempt.raw) < 500_000 else None
    if status[1] >= b"500":
        return f"status {status[1].decode()}"
    is_page = b"content-type: text/" in answer.lower()
    return "it leaks" if not is_page and LEAKS.search(answer) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="capsnet-multimnist-fine")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    statuses: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    problems: list[str] = []
    with serving(args.run) as process:
        ask = _get(process.port, f"/api/model?token={process.token}")
        about = json.loads(send(process.port, ask).partition(b"\r\n\r\n")[2])
        fuzzer = Fuzzer(args.seed, tuple(about["image"]), process.port, process.token)
        settled = slowest = 0.0
        for number, attempt in enumerate(fuzzer.attempts(args.requests)):
            began = time.perf_counter()
            answer = send(process.port, attempt.raw, hang_up=not attempt.whole)
            slowest = max(slowest, time.perf_counter() - began)
            kinds[attempt.kind] += 1
            statuses[answer[9:12].decode("latin-1") or "closed"] += 1
            if found := problem(attempt, answer):
                problems.append(f"{number} {attempt.kind}: {found}")
            if number == min(SETTLED, args.requests // 2):
                settled = process.resident_mb()
        growth, files, log = process.resident_mb() - settled, process.open_files(), process.log_bytes()
        alive = send(process.port, ask).startswith(b"HTTP/1.1 200")
    result = {
        "command": " ".join(["python", *sys.argv]),
        "requests": args.requests, "seed": args.seed, "kinds": dict(kinds), "statuses": dict(statuses),
        "problems": problems, "slowest_ms": round(slowest * 1000),
        "memory_growth_mb": round(growth, 1), "open_files": files, "log_bytes": log, "alive": alive,
    }  # fmt: skip
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "fuzz.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    if problems or not alive or growth > MOST_GROWTH_MB:
        raise SystemExit(1)


def _get(port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n".encode()


if __name__ == "__main__":
    main()
