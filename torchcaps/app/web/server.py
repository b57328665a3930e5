"""The server: the static page, the JSON interface, and the socket on which both are answered."""

import mimetypes
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

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

from torchcaps.app.web.api import Api
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.limits import SECURITY_HEADERS, Guard, Limits, Refused
from torchcaps.core.errors import UserError
from torchcaps.data import DataSet

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Windows takes the types of files from its registry, which may say that a script is plain text.
mimetypes.add_type("text/javascript", ".js")


def create_app(engine: Engine, hosts: Sequence[str] = LOOPBACK, limits: Limits | None = None) -> Starlette:
    limits = limits or Limits()
    return Starlette(
        routes=[
            Mount("/api", Router(Api(engine, limits).routes(), redirect_slashes=False)),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(Guard, limits=limits),
        ],
        exception_handlers={Refused: _refused, HTTPException: _http_error, Exception: _failed},  # pyright: ignore[reportArgumentType]
    )


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
        return socket.create_server((host, port), backlog=512)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"cannot listen on {host}:{port} ({why}); --port 0 takes any free port") from None


def make_server(app: Starlette) -> uvicorn.Server:
    # proxy_headers would let anybody choose the address that the rate limit counts.
    config = uvicorn.Config(
        app,
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
) -> None:
    """Serve the playground until Ctrl-C. Requests must name `host` or this machine as the server they are for."""
    if host in ("0.0.0.0", "::", ""):
        raise UserError("host must be the one address that others use, such as 192.168.1.5, not all addresses")
    app = create_app(Engine(model, name, data, accuracy), (*LOOPBACK, host))
    with listen(host, port) as listening:
        address = f"http://{host}:{listening.getsockname()[1]}/"
        print(f"The playground is at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        make_server(app).run(sockets=[listening])
