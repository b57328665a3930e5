"""The server: the static page, the JSON interface, and the socket on which both are answered."""

import html
import json
import math
import mimetypes
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Router
from starlette.staticfiles import StaticFiles
from torch import nn

from torchcaps.app.web import log
from torchcaps.app.web.api import Api
from torchcaps.app.web.connections import BACKLOG, Connection, Roster
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.guard import SECURITY_HEADERS, Guard
from torchcaps.app.web.limits import Limits, Refused
from torchcaps.app.web.token import new_token
from torchcaps.core.errors import UserError
from torchcaps.data import DataSet
from torchcaps.kernels.workspace import share_freed_memory

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SOCKET_BYTES = 1 << 17
# Windows takes the types of files from its registry, which may say that a script is plain text.
mimetypes.add_type("text/javascript", ".js")


def create_app(
    engine: Engine, token: str | None, hosts: Sequence[str] = LOOPBACK, limits: Limits | None = None
) -> Starlette:
    """Without a token, everybody who can reach the server is answered."""
    limits = limits or Limits()
    roster = Roster(limits)
    app = Starlette(
        routes=[
            Mount("/api", Router(Api(engine, limits).routes(), redirect_slashes=False)),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(Guard, limits=limits, roster=roster, token=token),
        ],
        exception_handlers={Refused: _refused, HTTPException: _http_error, Exception: _failed},  # pyright: ignore[reportArgumentType]
    )
    app.state.roster = roster
    return app


async def _refused(request: Request, error: Refused) -> Response:
    return JSONResponse({"error": error.message}, error.status)


async def _http_error(request: Request, error: HTTPException) -> Response:
    messages = {404: "there is nothing at this address", 405: "this address does not take this method"}
    return JSONResponse({"error": messages.get(error.status_code, "the request cannot be answered")}, error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    # Starlette sends this answer from outside of the Guard, which adds these headers to all others.
    headers = {**SECURITY_HEADERS, "cache-control": "no-store"}
    return JSONResponse({"error": "something went wrong in the server; its terminal says what"}, 500, headers)


def listen(host: str, port: int) -> socket.socket:
    try:
        listening = socket.create_server((host, port), backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"cannot listen on {host}:{port} ({why}); --port 0 takes any free port") from None
    # Of every connection: the system would let them grow to megabytes.
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        listening.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BYTES)
    return listening


def make_server(app: Starlette) -> uvicorn.Server:
    # One parser of HTTP on every machine, whatever else is installed. proxy_headers would let anybody choose the
    # address that the limits count.
    config = uvicorn.Config(
        app,
        http=partial(Connection, roster=app.state.roster),  # pyright: ignore[reportArgumentType]
        backlog=BACKLOG,
        timeout_keep_alive=math.ceil(app.state.roster.limits.kept_seconds),
        log_config=log.CONFIGURATION,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def serve(
    model: nn.Module,
    name: str,
    data: str | DataSet,
    accuracy: float | None = None,
    port: int = 8642,
    open_browser: bool = True,
    host: str = "127.0.0.1",
    with_token: bool = True,
    as_json: bool = False,
) -> None:
    """Serve the playground until Ctrl-C. Requests must name `host` or this machine as the server they are for.

    Without a token everybody answers who can connect, such as other users of this machine. `as_json` prints where it is
    to standard output as one line.
    """
    if host in ("0.0.0.0", "::", ""):
        raise UserError("host must be the one address that others use, such as 192.168.1.5, not all addresses")
    share_freed_memory()
    # One image is answered as fast by one thread. Two that have slept since the last one may be woken on one processor,
    # where the first looks for the second for 10 ms.
    torch.set_num_threads(1)
    token = new_token() if with_token else None
    app = create_app(Engine(model, name, data, accuracy), token, (*LOOPBACK, host))
    with listen(host, port) as listening, tempfile.TemporaryDirectory(prefix="torchcaps-") as private:
        port = listening.getsockname()[1]
        address = f"http://{host}:{port}/" + (f"?token={token}" if token else "")
        if as_json:
            print(json.dumps({"address": address, "port": port, "token": token, "model": name}), flush=True)
        else:
            print(f"The playground is at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if open_browser:
            _open(address, Path(private))
        make_server(app).run(sockets=[listening])


def _open(address: str, private: Path) -> None:
    """By a page in a folder that only its owner can read: every user can see how a browser was called."""
    page, link = private / "open.html", html.escape(address)
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={link}"><a href="{link}">Open</a>')
    threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
