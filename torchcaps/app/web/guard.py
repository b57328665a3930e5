"""Which requests are answered: from which sites, with the token, as many as the limits allow."""

import time
from collections import Counter
from collections.abc import Iterator

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchcaps.app.web import token as tokens
from torchcaps.app.web.connections import Roster
from torchcaps.app.web.limits import Limits, RateLimit, Refused

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


PIECE = 1 << 16


class Guard:
    """Around the application: origins, the token, request rate, what is in flight, and the headers of every answer.

    A page elsewhere on the web can make a browser send requests here, which shows in Origin; or make a name of its own
    point here (DNS rebinding), which shows in Host and is refused by starlette's `TrustedHostMiddleware`. Other users
    of the machine can send anything, except the token.
    """

    def __init__(self, app: ASGIApp, limits: Limits, roster: Roster, token: str | None) -> None:
        self.app, self.limits, self.roster, self.token = app, limits, roster, token
        self.rate = RateLimit(limits)
        self.in_flight: Counter[str] = Counter()
        self.bodies_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        is_api = scope["path"].startswith("/api/")
        client = (scope.get("client") or ("unknown", 0))[0]
        is_gone = False
        held, computed = 0, 0

        async def receive_guarded() -> Message:
            nonlocal is_gone, held, computed
            message = await receive()
            is_gone = is_gone or message["type"] == "http.disconnect"
            size = len(message.get("body", b""))
            held, self.bodies_bytes = held + size, self.bodies_bytes + size
            if size and self.bodies_bytes > self.limits.bodies_bytes:
                raise Refused(429, f"too much at the same time: at most {self.limits.bodies_bytes:,} bytes")
            if message["type"] == "http.request" and not message.get("more_body") and not computed:
                self._check_in_flight(client)
                computed = 1
                self.in_flight[client] += 1
            return message

        def answered() -> None:
            nonlocal computed
            self.in_flight[client] -= computed
            self.in_flight += Counter()  # forgets clients that have nothing in flight
            computed = 0

        async def send_guarded(message: Message) -> None:
            nonlocal is_gone
            answered()
            if is_gone:
                return
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers["cache-control"] = "no-store" if is_api else "no-cache"
            try:
                for part in _parts(message):
                    await send(part)
            except h11.LocalProtocolError:
                # What follows the headers was not HTTP: uvicorn has answered 400 and closed the connection by itself.
                is_gone = True

        try:
            _check_origin(Headers(scope=scope))
            if self.token is not None and (answer := tokens.exchange(self.token, scope)):
                await answer(scope, receive, send_guarded)
                return
            if is_api:
                self._check_client(scope, client)
        except Refused as refused:
            headers = {429: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(refused.status)
            answer = JSONResponse({"error": refused.message}, refused.status, headers)
            await answer(scope, receive, send_guarded)
            return
        try:
            await self.app(scope, receive_guarded, send_guarded)
        finally:
            answered()
            self.bodies_bytes -= held

    def _check_client(self, scope: Scope, client: str) -> None:
        if self.token is not None and not tokens.is_given(self.token, scope):
            raise Refused(401, "a token is needed: open the address that 'torchcaps serve' printed")
        self.roster.vouch(scope.get("client"))
        if not self.rate.allows(client, time.monotonic()):
            raise Refused(429, f"too many requests: at most {self.limits.per_second:.0f} a second")

    def _check_in_flight(self, client: str) -> None:
        limits = self.limits
        for count, most in (
            (self.in_flight[client], limits.in_flight_each),
            (self.in_flight.total(), limits.in_flight),
        ):
            if count >= most:
                raise Refused(429, f"too many requests at the same time: at most {most}")


def _parts(message: Message) -> Iterator[Message]:
    """A long answer piece by piece, each once the client has read what is before it: else we would hold it all."""
    body = message.get("body", b"")
    for start in range(0, len(body) - PIECE, PIECE):
        yield {**message, "body": body[start : start + PIECE], "more_body": True}
    yield {**message, "body": body[len(body) - (len(body) % PIECE or PIECE) :]} if len(body) > PIECE else message


def _check_origin(headers: Headers) -> None:
    host, origin = headers.get("host", ""), headers.get("origin")
    is_foreign = origin is not None and origin not in (f"http://{host}", f"https://{host}")
    is_cross_site = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate"
    if is_foreign or is_cross_site:
        raise Refused(403, "requests from other sites are not answered")
