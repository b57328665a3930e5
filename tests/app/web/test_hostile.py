"""Whatever is sent, the answer is a sentence with a 4xx status, and nothing of this machine is in it."""

import io
import socket
import struct
import threading
import zlib

import httpx
import pytest
import serve_fuzz
from conftest import running
from PIL import Image

from torchcaps.app.web.engine import Engine
from torchcaps.app.web.limits import Limits, RateLimit
from torchcaps.app.web.server import listen, serve
from torchcaps.core.errors import UserError

JSON = {"content-type": "application/json"}
BLANK = [[0.0] * 36] * 36


def png_header(width: int, height: int) -> bytes:
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(99)))]
    body = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("look", "", 400),
        ("look", "{", 400),
        ("look", "[]", 422),
        ("look", "{}", 422),
        ("look", '{"image": NaN}', 400),
        ("look", '{"image": [[1e999]]}', 422),
        ("look", "[" * 200_000, 400),
        ("look", '{"image": "AAAA"}', 422),
        ("look", '{"image": "not base64!"}', 422),
        ("look", '{"image": "' + "A" * 2_000_000 + '"}', 413),
        ("look", str({"image": [[2.0] * 36] * 36}).replace("'", '"'), 422),
        ("look", str({"image": [[0.0] * 35] * 36}).replace("'", '"'), 422),
        ("look", '{"image": [[true]]}', 422),
        ("decode", '{"label": 10, "vectors": [[0]]}', 422),
        ("decode", '{"label": true, "vectors": [[0]]}', 422),
        ("decode", '{"label": 1, "vectors": []}', 422),
        ("decode", '{"label": 1, "vectors": [[' + "9" * 500 + "]]}", 422),
        ("decode", str({"label": 1, "vectors": [[0.0] * 16] * 65}).replace("'", '"'), 422),
        ("decode", str({"label": 1, "vectors": [[0.0] * 16], "corner": [0, 9]}).replace("'", '"'), 422),
        ("decode", str({"label": 1, "vectors": [[0.0] * 16], "corner": "here"}).replace("'", '"'), 422),
        ("decode", str({"label": 1, "vectors": [[11.0] * 16]}).replace("'", '"'), 422),
        ("routing", str({"image": BLANK, "parents": [1, 1]}).replace("'", '"'), 422),
        ("routing", str({"image": BLANK, "parents": []}).replace("'", '"'), 422),
        ("routing", str({"image": BLANK, "parents": [-1]}).replace("'", '"'), 422),
    ],
)
def test_bad_json_is_refused_with_a_sentence(client, path, body, status):
    answer = client.post(f"/api/{path}", content=body, headers=JSON)
    assert answer.status_code == status
    assert len(answer.json()["error"]) > 10
    assert not serve_fuzz.LEAKS.search(answer.content)


def test_only_json_is_json(client):
    assert client.post("/api/look", content="{}", headers={"content-type": "text/plain"}).status_code == 415


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"GIF89a", 422),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 422),
        (png_header(100_000, 100_000), 422),
        (png_header(2, 2), 422),
        (png_header(64, 64)[:40], 422),
        (bytes(9_000_000), 413),
    ],
)
def test_bad_pictures_are_refused(client, content, status):
    answer = client.post("/api/picture", content=content)
    assert answer.status_code == status
    assert "picture" in answer.json()["error"] or status == 413


def test_formats_that_run_other_programs_are_not_opened(client):
    file = io.BytesIO()
    Image.new("RGB", (30, 30)).save(file, "EPS")
    assert client.post("/api/picture", content=file.getvalue()).status_code == 422


@pytest.mark.parametrize(
    "path", ["/api/nothing", "/..%2f..%2fserver.py", "/js/../../server.py", "/%00", "/js/", "/.git/config"]
)
def test_there_is_nothing_else(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error"}


def test_wrong_method(client):
    assert client.get("/api/look").status_code == 405


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost@evil.example", "a:b", ""])
@pytest.mark.parametrize("path", ["/", "/api/model"])
def test_other_names_are_refused(client, host, path):
    answer = client.get(path, headers={"host": host})
    assert (answer.status_code, answer.text) == (400, "Invalid host header")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/model"])
def test_other_origins_are_refused(client, headers, path):
    assert client.get(path, headers=headers).status_code == 403


def test_own_names_and_origins_are_answered(client, address):
    port = address.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost", "LOCALHOST", f"[::1]:{port}"):
        assert client.get("/api/model", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/js/main.js", "/api/model", "/nothing"])
def test_headers_of_every_answer(client, path):
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")
    assert "server" not in headers


def test_rate_is_limited_per_client():
    rate = RateLimit(Limits(per_second=10, burst=5, clients_remembered=2))
    assert [rate.allows("a", 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert rate.allows("b", 0.0)
    assert not rate.allows("a", 0.05)
    assert rate.allows("a", 0.15)
    for name in "cdefg":
        rate.allows(name, 1.0)
    assert len(rate._buckets) == 2


def test_too_many_requests_are_told_so(engine):
    with running(engine, Limits(per_second=0.1, burst=3)) as address, httpx.Client(base_url=address) as client:
        answers = [client.get("/api/model") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2
    assert answers[-1].headers["retry-after"] == "1"


def test_a_failure_says_nothing_about_this_machine(model, monkeypatch):
    engine = Engine(model, "capsnet-multimnist-small", "multimnist")
    monkeypatch.setattr(engine, "look", lambda images: open("/nowhere/secret.txt"))  # noqa: SIM115
    with running(engine) as address:
        answer = httpx.post(f"{address}/api/look", json={"image": BLANK})
    assert answer.status_code == 500
    assert answer.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.json() == {"error": "something went wrong in the server; its terminal says what"}


def test_a_taken_port_is_explained():
    with listen("127.0.0.1", 0) as taken, pytest.raises(UserError, match="--port 0"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_the_server_listens_on_this_machine_only(model):
    with pytest.raises(UserError, match="one address"):
        serve(model, "capsnet-multimnist-small", "multimnist", port=0, open_browser=False, host="0.0.0.0")


def test_fuzzed_requests(address):
    port = int(address.rpartition(":")[2])
    fuzzer = serve_fuzz.Fuzzer(1, (1, 36, 36), port)
    threads = threading.active_count()
    for attempt in fuzzer.attempts(400):
        answer = serve_fuzz.send(port, attempt.raw, hang_up=not attempt.whole)
        assert serve_fuzz.problem(attempt, answer) is None, (attempt.kind, attempt.raw[:300], answer[:300])
    assert httpx.get(f"{address}/api/model").status_code == 200
    assert threading.active_count() <= threads + 10, "those that compute, decode and read files start when first needed"


def test_answers_survive_clients_that_leave(address):
    body = f'{{"image": {BLANK}}}'.encode()
    head = "POST /api/look HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    assert httpx.post(f"{address}/api/look", json={"image": BLANK}, timeout=30).status_code == 200
