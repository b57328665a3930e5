"""Clients that are silent, slow, or do not read: they are closed, and hold nobody up."""

import asyncio
import http.client
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from conftest import running
from starlette.types import Message, Receive, Scope, Send

from torchcaps.app.web import connections
from torchcaps.app.web.connections import Roster
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.guard import PIECE, Guard
from torchcaps.app.web.limits import Limits
from torchcaps.app.web.log import OneLine, Seldom
from torchcaps.app.web.server import create_app, listen, make_server

BLANK = [[0.0] * 36] * 36
BODY = json.dumps({"image": BLANK}).encode()
GET = b"GET /api/model HTTP/1.1\r\nhost: localhost\r\n\r\n"
SLOW = b"POST /api/look HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
SAMPLES = b"GET /api/samples HTTP/1.1\r\nhost: localhost\r\n\r\n"


def connect(address: str, receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Within the socket's timeout."""
    try:
        return connection.recv(1000) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def is_answered(connection: socket.socket, sent: bytes) -> bool:
    """Reads the whole of an answer."""
    connection.sendall(sent)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status == 200


def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)
    return holds()


def unread(roster: Roster) -> int:
    """Bytes that wait for the slowest client. The server's thread changes the set meanwhile."""
    return max((one.unread for one in list(roster._connections)), default=0)


@contextmanager
def served(engine: Engine, limits: Limits) -> Iterator[tuple[str, Roster]]:
    app = create_app(engine, None, limits=limits)
    server = make_server(app)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.roster
        finally:
            server.should_exit = True
            thread.join(timeout=10)


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)


@pytest.mark.usefixtures("swift")
@pytest.mark.parametrize(
    ("sent", "limit"),
    [(b"", "idle_seconds"), (b"GET /api/mo", "head_seconds"), (GET, "kept_seconds")],
    ids=["silent", "half a header", "idle after an answer"],
)
def test_silent_connections_are_closed(engine, sent, limit):
    with running(engine, Limits(**{limit: 0.2})) as address, closing(connect(address)) as silent:
        if sent == GET:
            assert is_answered(silent, GET)
        else:
            silent.sendall(sent)
        silent.settimeout(Limits().idle_seconds - 1)
        assert is_closed(silent)


@pytest.mark.usefixtures("swift")
def test_who_has_shown_the_token_may_be_silent_for_longer(engine):
    with served(engine, Limits()) as (address, roster), closing(connect(address)) as known:
        assert is_answered(known, GET)
        (one,) = roster._connections
        one.since -= Limits().idle_seconds + 10
        time.sleep(0.5)
        assert is_answered(known, GET)


@pytest.mark.usefixtures("swift")
def test_headers_that_come_byte_by_byte_do_not_prolong_a_connection(engine):
    with running(engine, Limits(head_seconds=0.3)) as address, closing(connect(address)) as slow:
        began = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012
            for byte in b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100:
                slow.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 5


def test_slow_bodies_hold_nobody_up(engine):
    with running(engine, Limits(in_flight_each=1, body_seconds=2.0)) as address:
        slow = [connect(address) for _ in range(3)]
        for connection in slow:
            connection.sendall(SLOW + b"{")
        assert httpx.post(f"{address}/api/look", json={"image": BLANK}, timeout=30).status_code == 200
        for connection in slow:
            with connection:
                assert b" 408 " in connection.recv(1000)


def test_answers_that_are_not_read_hold_nobody_up():
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def whole() -> Message:
        return {"type": "http.request", "body": b""}

    async def ask_two() -> list[int]:
        guard, scope = Guard(app, Limits(in_flight_each=1), Roster(Limits()), None), {"type": "http", "path": "/"}
        scope |= {"headers": [], "client": ("127.0.0.1", 1)}
        unread, answers = asyncio.Event(), []

        async def never(message: Message) -> None:
            unread.set()
            await asyncio.Event().wait()

        async def at_once(message: Message) -> None:
            answers.append(message["status"])

        deaf = asyncio.create_task(guard(scope, whole, never))
        await unread.wait()
        await guard(scope, whole, at_once)
        deaf.cancel()
        return answers

    assert asyncio.run(ask_two()) == [200]


def test_a_long_answer_is_handed_over_piece_by_piece():
    body, sent = os.urandom(3 * PIECE + 1), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def keep(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/", "headers": [], "client": ("127.0.0.1", 1)}
    asyncio.run(Guard(app, Limits(), Roster(Limits()), None)(scope, keep, keep))
    assert b"".join(part["body"] for part in sent[1:]) == body
    assert max(len(part["body"]) for part in sent[1:]) == PIECE
    assert [part.get("more_body", False) for part in sent[1:]] == [True, True, True, False]


def test_what_one_client_has_in_flight_is_limited(model, monkeypatch):
    engine = Engine(model, "capsnet-multimnist-small", "multimnist")
    go_on, look = threading.Event(), engine.look
    monkeypatch.setattr(engine, "look", lambda images: (go_on.wait(20), look(images))[1])
    head = SLOW.replace(b": 100", b": %d" % len(BODY))
    with running(engine, Limits(in_flight_each=2)) as address, ExitStack() as stack:
        three = [stack.enter_context(closing(connect(address))) for _ in range(3)]
        for connection in three:
            connection.sendall(head + BODY)
        (refused,), _, _ = select.select(three, [], [], 20)
        assert refused.recv(100).startswith(b"HTTP/1.1 429")
        go_on.set()
        assert [one.recv(15) for one in three if one is not refused] == [b"HTTP/1.1 200 OK"] * 2


def test_bytes_that_wait_are_limited(engine):
    with running(engine, Limits(bodies_bytes=50)) as address, httpx.Client(base_url=address, timeout=30) as client:
        assert client.post("/api/look", json={"image": BLANK}).status_code == 429
        assert client.post("/api/picture", content=b"a" * 40).status_code == 422


@pytest.mark.usefixtures("swift")
def test_a_client_that_does_not_read_is_closed_and_holds_little(engine):
    with served(engine, Limits(write_seconds=0.4)) as (address, roster), closing(connect(address, 4096)) as deaf:
        deaf.sendall(SAMPLES * 40)
        assert eventually(lambda: unread(roster) > 0)
        assert unread(roster) < 300_000, "an answer is handed over piece by piece"
        assert httpx.get(f"{address}/api/model", timeout=30).status_code == 200
        assert eventually(lambda: len(roster) == 0)
        hung_up = select.poll()
        hung_up.register(deaf, 0)
        assert hung_up.poll(30_000), "the system keeps nothing for it either"


@pytest.mark.usefixtures("swift")
def test_a_client_that_reads_slowly_gets_its_answer(engine):
    with running(engine, Limits(write_seconds=1.0)) as address, closing(connect(address, 4096)) as slow:
        slow.sendall(SAMPLES.replace(b"host:", b"connection: close\r\nhost:"))
        read = bytearray()
        while part := slow.recv(20_000):
            read += part
            time.sleep(0.05)
        assert read.endswith(b"}")


def test_strangers_make_room_for_each_other_and_not_those_who_are_known(engine):
    with served(engine, Limits(connections_each=4)) as (address, roster):
        known = connect(address)
        assert is_answered(known, GET)
        crowd = [connect(address) for _ in range(20)]
        assert eventually(lambda: len(roster) == 4)
        assert all(is_closed(stranger) for stranger in crowd[:17])
        assert is_answered(known, GET)
        assert httpx.get(f"{address}/api/model", timeout=30).status_code == 200
        for connection in (known, *crowd):
            connection.close()


def test_there_are_fewer_connections_than_files_may_be_open(monkeypatch):
    monkeypatch.setattr(connections, "_open_files", lambda: 256)
    assert connections.Roster(Limits()).most == 256 - connections.BACKLOG - connections.OTHER_FILES
    monkeypatch.setattr(connections, "_open_files", lambda: 1 << 20)
    assert connections.Roster(Limits()).most == Limits().connections


def test_an_error_is_one_line_and_said_once(capsys):
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    handler.addFilter(seldom := Seldom())
    logger = logging.Logger("uvicorn.error")
    logger.addHandler(handler)
    for _ in range(1000):
        try:
            raise ValueError("of two\nlines")
        except ValueError as error:
            logger.error("Exception in ASGI application\n", exc_info=error)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ValueError: of two lines (" in said
    assert "Traceback" not in said
    seldom._said = {kind: (at - 100, count) for kind, (at, count) in seldom._said.items()}
    logger.error("Exception in ASGI application\n", exc_info=ValueError("again"))
    assert "(999 more like this)" in capsys.readouterr().err


def test_an_answer_that_fails_is_one_line_in_the_terminal(model, monkeypatch, capsys):
    engine = Engine(model, "capsnet-multimnist-small", "multimnist")
    monkeypatch.setattr(engine, "look", lambda images: 1 / 0)
    with running(engine) as address:
        for _ in range(3):
            assert httpx.post(f"{address}/api/look", json={"image": BLANK}, timeout=30).status_code == 500
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ZeroDivisionError" in said


MEMORY = """
import io, os
from PIL import Image
from torchcaps.kernels.workspace import keep_freed_memory
from torchcaps.app.web.api import Api
keep_freed_memory()

class Engine:
    image = (1, 36, 36)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

def file(side):
    content = io.BytesIO()
    Image.new("RGBA", (side, side), (200, 10, 30, 128)).save(content, "PNG", compress_level=1)
    return content.getvalue()

api = Api.__new__(Api)
api.engine, api.handwritten = Engine(), False
api._read_picture(file(100))
import ctypes
large = file(3900)
ctypes.CDLL(None).malloc_trim(0)
before = resident()
api._read_picture(large)
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is looked up in /proc")
def test_memory_is_given_back_after_a_large_picture():
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) < 50
