"""The server: the page, the interface, and the socket they are on."""

import socket
import sys
import threading
import webbrowser
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import nn

from torchcaps.app.web.api import Api
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.errors import Refused
from torchcaps.app.web.limits import SECURITY_HEADERS, Guard, Limits
from torchcaps.core.errors import UserError
from torchcaps.data import DataSet

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


def create_app(engine: Engine, hosts: frozenset[str] = LOOPBACK, limits: Limits | None = None) -> Starlette:
    limits = limits or Limits()
    app = Starlette(
        routes=[*_page(), *Api(engine, limits).routes()],
        middleware=[Middleware(Guard, hosts=hosts, limits=limits)],
        exception_handlers={Refused: _refused, HTTPException: _http_error, Exception: _failed},  # pyright: ignore[reportArgumentType]
    )
    app.router.redirect_slashes = False
    return app


def _page() -> list[Route]:
    """The files of the page, read once: what is asked for is looked up by its exact name, never on the disk."""
    files = {path: path.relative_to(STATIC).as_posix() for path in sorted(STATIC.rglob("*")) if path.suffix in TYPES}
    return [_file("/" if name == "index.html" else f"/{name}", path) for path, name in files.items()]


def _file(address: str, path: Path) -> Route:
    content, kind = path.read_bytes(), TYPES[path.suffix]

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(address, answer)


async def _refused(request: Request, error: Refused) -> Response:
    return JSONResponse({"error": error.message}, error.status)


async def _http_error(request: Request, error: HTTPException) -> Response:
    messages = {404: "there is nothing at this address", 405: "this address does not take this method"}
    return JSONResponse({"error": messages.get(error.status_code, "the request cannot be answered")}, error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    # This answer alone is made outside of the guard, which gives all others their headers.
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
    """Serve the playground until Ctrl-C. On another `host` than this machine, only that exact name is answered to."""
    if host in ("0.0.0.0", "::", ""):
        raise UserError("name the one address that others will use, such as 192.168.1.5, not all of them")
    app = create_app(Engine(model, name, data, accuracy), LOOPBACK | {host.lower()})
    with listen(host, port) as listening:
        address = f"http://{host}:{listening.getsockname()[1]}/"
        print(f"The playground is at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        make_server(app).run(sockets=[listening])
