"""Connections: how many there are, how long they may be silent, and which one makes room for another.

All clients may have the same address, so it is not the address that decides who stays: a connection that has shown the
token goes last, one that is silent or does not read its answer goes first.
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from torchcaps.app.web.limits import Limits

SWEEP_SECONDS = 0.5
BACKLOG = 128
"""Connections that the system accepts ahead of us; asyncio takes as many at once."""
OTHER_FILES = 64
"""Left free below the process's limit of open files."""
FEWEST = 16
NO_LINGER = struct.pack("ii", 1, 0)


class Connection(H11Protocol):
    """One connection. A request is `under_way` from its last header to the last byte of its answer that we write."""

    def __init__(self, *args: Any, roster: "Roster", **options: Any) -> None:
        super().__init__(*args, **options)
        self.roster = roster
        self.is_known = False
        self.since = self.loop.time()
        """When it became our client, ended a request, or began to send the next one."""
        self.has_begun = False
        self.unread, self.stuck_seconds = 0, 0.0

    @property
    def under_way(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.roster.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.roster.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.under_way and not self.has_begun:
            self.has_begun, self.since = True, self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.has_begun, self.since = False, self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        self.stuck_seconds = 0.0
        super().resume_writing()

    def look(self) -> None:
        """Note whether the client has read anything since the last look.

        The time is counted in looks: while this process itself was held up, nobody could read.
        """
        unread = self.transport.get_write_buffer_size()
        has_read = not unread or unread != self.unread
        self.unread, self.stuck_seconds = unread, 0.0 if has_read else self.stuck_seconds + SWEEP_SECONDS

    def waits(self) -> bool:
        """For the client, not for us: it sends no request, or does not read the answer."""
        return not self.under_way or self.stuck_seconds > 0

    def is_late(self, now: float, limits: Limits) -> bool:
        if self.unread:
            return self.stuck_seconds > limits.write_seconds
        idle = limits.kept_seconds if self.is_known else limits.idle_seconds
        return not self.under_way and now - self.since > (limits.head_seconds if self.has_begun else idle)


class Roster:
    """All connections of a server. Late ones are closed; beyond the limits, the least deserving makes room."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.most = min(limits.connections, max(FEWEST, _open_files() - BACKLOG - OTHER_FILES))
        self._connections: set[Connection] = set()
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, new: Connection) -> None:
        self._connections.add(new)
        if not self._sweeping:
            self._sweeping = True
            new.loop.call_later(SWEEP_SECONDS, self._sweep, new.loop)
        of_client = [one for one in self._connections if _host(one) == _host(new)]
        if len(of_client) > min(self.limits.connections_each, self.most):
            self._make_room(of_client)
        elif len(self) > self.most:
            self._make_room(self._connections)

    def remove(self, gone: Connection) -> None:
        self._connections.discard(gone)

    def vouch(self, client: tuple[str, int] | None) -> None:
        """The connection of this client has shown the token."""
        for one in self._connections:
            if one.client == client:
                one.is_known = True

    def _make_room(self, among: Iterable[Connection]) -> None:
        """Of those that wait for their client, strangers first and the longest silent of them."""
        waiting = [one for one in among if one.waits()]
        self._drop(min(waiting, key=lambda one: (one.is_known, one.since)))

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for one in list(self._connections):
            one.look()
            if one.is_late(now, self.limits):
                self._drop(one)
        self._sweeping = bool(self._connections)
        if self._sweeping:
            loop.call_later(SWEEP_SECONDS, self._sweep, loop)

    def _drop(self, one: Connection) -> None:
        """At once: otherwise we, and then the system, would wait until the client has read what is left."""
        self.remove(one)
        with suppress(OSError):  # the client has left meanwhile
            one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        one.transport.abort()


def _host(one: Connection) -> str | None:
    return one.client[0] if one.client else None


def _open_files() -> int:
    if sys.platform == "win32":
        return 1 << 20
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] % (1 << 62)  # -1 means that there is no limit
