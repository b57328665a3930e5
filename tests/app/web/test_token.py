"""Whoever has the address that was printed is answered, and nobody else."""

import json
import stat
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from conftest import running

from torchcaps.app.cli import main
from torchcaps.app.web import server
from torchcaps.app.web.token import new_token

TOKEN = "5f" * 24


@pytest.fixture(scope="module")
def guarded(engine) -> Iterator[str]:
    with running(engine, token=TOKEN) as address:
        yield address


@pytest.fixture
def stranger(guarded: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded, timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"params": {"token": "5f"}},
        {"params": {"token": TOKEN + "0"}},
        {"params": {"token": "é"}},
        {"headers": {"authorization": "Bearer"}},
        {"headers": {"authorization": f"Basic {TOKEN}"}},
        {"headers": {"cookie": f"torchcaps-1={TOKEN}"}},
    ],
)
@pytest.mark.parametrize("path", ["model", "samples", "nothing"])
def test_strangers_are_told_what_is_missing(stranger, path, request_):
    answer = stranger.get(f"/api/{path}", **request_)
    assert answer.status_code == 401
    assert "torchcaps serve" in answer.json()["error"]


def test_a_stranger_cannot_upload(stranger):
    assert stranger.post("/api/picture", content=bytes(100_000)).status_code == 401


@pytest.mark.parametrize(
    "request_",
    [
        {"params": {"token": TOKEN}},
        {"headers": {"authorization": f"Bearer {TOKEN}"}},
        {"headers": {"authorization": f"token {TOKEN}"}},
    ],
)
def test_programs_show_the_token(stranger, request_):
    assert stranger.get("/api/model", **request_).status_code == 200


def test_the_page_exchanges_the_token_for_a_cookie(stranger):
    answer = stranger.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    name, _, rest = answer.headers["set-cookie"].partition("=")
    assert name == f"torchcaps-{stranger.base_url.port}"
    assert {part.strip().lower() for part in rest.split(";")} >= {TOKEN, "httponly", "samesite=strict", "path=/"}
    assert stranger.get("/api/model").status_code == 200


def test_a_wrong_token_gives_no_cookie(stranger):
    answer = stranger.get("/", params={"token": "wrong"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "set-cookie" not in answer.headers
    assert stranger.get("/").status_code == 200, "the page itself is no secret"


def test_tokens_differ():
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) >= 32


@pytest.mark.parametrize("with_token", [True, False])
def test_what_serve_prints_and_opens(model, monkeypatch, capsys, with_token):
    opened: list[tuple[str, int, str]] = []
    shared: list[bool] = []

    def look(address: str) -> None:
        page = Path(unquote(urlsplit(address).path))
        opened.append((address, stat.S_IMODE(page.parent.stat().st_mode), page.read_text()))

    class Ended:
        def __init__(self, app: object) -> None:
            self.app = app

        def run(self, sockets: list) -> None:
            for _ in range(3000):
                if opened:
                    return
                time.sleep(0.01)

    monkeypatch.setattr(webbrowser, "open", look)
    monkeypatch.setattr(server, "make_server", Ended)
    monkeypatch.setattr(server, "share_freed_memory", lambda: shared.append(True))
    how = {"port": 0, "with_token": with_token, "as_json": True}
    server.serve(model, "capsnet-multimnist-small", "multimnist", **how)
    said = json.loads(capsys.readouterr().out)
    token = said["token"]
    assert (token is not None) == with_token
    assert said["address"] == f"http://127.0.0.1:{said['port']}/" + (f"?token={token}" if token else "")
    ((address, mode, page),) = opened
    assert address.startswith("file:")
    assert mode == 0o700
    assert said["address"] in page
    assert not token or token not in address, "every user can see how a browser was called"
    assert shared, "else what a thread has freed could not be returned"


def test_the_command_has_a_token_unless_told_otherwise(monkeypatch):
    given: list[dict] = []
    monkeypatch.setattr(server, "serve", lambda *_, **how: given.append(how))
    for flags in ([], ["--no-token"]):
        main(["serve", "capsnet-mnist-small", "--no-open", *flags])
    assert [how["with_token"] for how in given] == [True, False]


def test_the_page_in_the_browser(guarded, browser):
    page = browser.new_page()
    page.goto(f"{guarded}/")
    page.wait_for_selector("#notice:not([hidden])")
    assert "torchcaps serve" in page.inner_text("#notice")
    page.goto(f"{guarded}/?token={TOKEN}#layers=1~3~4~0~1~0")
    page.wait_for_selector("html[data-ready]")
    assert "token" not in page.url
    assert "layers=" in page.url, "the state in the address is kept"
    assert page.evaluate("document.cookie") == ""
    page.close()
