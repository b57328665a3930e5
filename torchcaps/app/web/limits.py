"""Which requests are answered: from which sites, how many, how large. Every refusal says why in one sentence."""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Refused(Exception):
    """A 4xx answer. The message is fixed text: nothing of the request or of this machine is repeated in it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Limits:
    json_bytes: int = 1_000_000
    picture_bytes: int = 8_000_000
    body_seconds: float = 10.0
    in_flight: int = 64
    per_second: float = 500.0
    """Of one client (an address). A page that follows a drag asks about a hundred times a second."""
    burst: float = 1000.0
    clients_remembered: int = 1024


SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class RateLimit:
    """A token bucket for each client; the least recent client is forgotten first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str, now: float) -> bool:
        tokens, since = self._buckets.pop(client, (self.limits.burst, now))
        tokens = min(self.limits.burst, tokens + (now - since) * self.limits.per_second)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > self.limits.clients_remembered:
            self._buckets.popitem(last=False)
        return allowed


class Guard:
    """Around the application: origins, request rate, requests at the same time, and the headers of every answer.

    A page elsewhere on the web can make a browser send requests here, which shows in Origin; or make a name of its own
    point here (DNS rebinding), which shows in Host and is refused by starlette's `TrustedHostMiddleware`.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.rate = RateLimit(limits)
        self.in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        is_api = scope["path"].startswith("/api/")
        is_gone = False

        async def receive_guarded() -> Message:
            nonlocal is_gone
            message = await receive()
            is_gone = is_gone or message["type"] == "http.disconnect"
            return message

        async def send_guarded(message: Message) -> None:
            nonlocal is_gone
            if is_gone:
                return
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers["cache-control"] = "no-store" if is_api else "no-cache"
            try:
                await send(message)
            except h11.LocalProtocolError:
                # What follows the headers was not HTTP: uvicorn has answered 400 and closed the connection by itself.
                is_gone = True

        try:
            _check_origin(Headers(scope=scope))
            if is_api:
                self._check_numbers(scope)
        except Refused as refused:
            retry = {"retry-after": "1"} if refused.status == 429 else None
            answer = JSONResponse({"error": refused.message}, refused.status, retry)
            await answer(scope, receive, send_guarded)
            return
        self.in_flight += is_api
        try:
            await self.app(scope, receive_guarded, send_guarded)
        finally:
            self.in_flight -= is_api

    def _check_numbers(self, scope: Scope) -> None:
        client = (scope.get("client") or ("unknown", 0))[0]
        if not self.rate.allows(client, time.monotonic()):
            raise Refused(429, f"too many requests: at most {self.limits.per_second:.0f} a second")
        if self.in_flight >= self.limits.in_flight:
            raise Refused(429, f"too many requests at the same time: at most {self.limits.in_flight}")


def _check_origin(headers: Headers) -> None:
    host, origin = headers.get("host", ""), headers.get("origin")
    is_foreign = origin is not None and origin not in (f"http://{host}", f"https://{host}")
    is_cross_site = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
    if is_foreign or is_cross_site:
        raise Refused(403, "requests from other sites are not answered")


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """The whole body, unless it is too long or too slow."""
    too_long = Refused(413, f"the body is too long: at most {most:,} bytes")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced[:20]) > most:
        raise too_long
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > most:
                    raise too_long
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {seconds:.0f} seconds") from None
    except ClientDisconnect:
        raise Refused(400, "the request ended before its body did") from None
    return bytes(content)
