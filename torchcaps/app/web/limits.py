"""How many requests and bytes a client may send, and how long it may take. Every refusal says why in one sentence."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request


class Refused(Exception):
    """A 4xx answer. The message is fixed text: nothing of the request or of this machine is repeated in it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Limits:
    """`each` is of one client, by which an address is meant: on one machine all clients are one."""

    json_bytes: int = 1_000_000
    picture_bytes: int = 8_000_000
    bodies_bytes: int = 64_000_000
    """Of all requests together that are here and not answered yet."""
    head_seconds: float = 5.0
    """From the first byte of a request to the last of its headers."""
    idle_seconds: float = 5.0
    """Without a request, before the token was shown."""
    kept_seconds: float = 60.0
    """Without a request, afterwards."""
    body_seconds: float = 10.0
    write_seconds: float = 5.0
    """In which a client reads nothing of its answer."""
    connections: int = 512
    connections_each: int = 384
    in_flight: int = 192
    in_flight_each: int = 128
    """Requests that are computed or wait for it: those still arriving, or being read by the client, hold nobody up."""
    per_second: float = 500.0
    """Of one client. A page that follows a drag asks about a hundred times a second."""
    burst: float = 1000.0
    clients_remembered: int = 1024


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
