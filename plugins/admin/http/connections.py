"""The sockets of the HTTP admin: how many, whose, and how long before they authenticate."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast

from aiohttp import web

from lakemq.broker_core.api.limits.connection_limits import (
    AdmittedConnection,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionRefused,
)

KEEP_ALIVE_S: Final = 75.0
"""How long a connection that has authenticated may be idle between two requests."""
BACKLOG: Final = 128


def limits_of(connections_max: int) -> ConnectionLimits:
    """One peer has half of the connections, as have those that have not authenticated; of these
    one peer has half again."""
    half = max(1, connections_max // 2)
    return ConnectionLimits(
        connections_max, half, half, max(1, half // 2), unauthenticated_max_bytes=None
    )


class AdminConnections:
    """Accepts connections for an aiohttp server."""

    def __init__(
        self,
        server: web.Server,
        limits: ConnectionLimits,
        unauthenticated_timeout_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.limiter = ConnectionLimiter(limits)
        self.server = server
        self.timeout_s = unauthenticated_timeout_s
        self.tls = tls
        self.by_handler: dict[object, AdminConnection] = {}
        self._listening: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            lambda: AdminConnection(self), host, port, backlog=BACKLOG
        )

    def addresses(self) -> list[str]:
        """`host:port` of the sockets that are bound; none before `listen`."""
        if self._listening is None:
            return []
        names = [each.getsockname() for each in self._listening.sockets]
        return [f"{name[0]}:{name[1]}" for name in names]

    def close(self) -> None:
        """Accept no more."""
        if self._listening is not None:
            self._listening.close()

    def answered(self, request: web.BaseRequest, *, authenticated: bool) -> None:
        """Note that a request of the connection was answered."""
        connection = self.by_handler.get(request.protocol)
        if connection is not None:
            connection.answered(authenticated)


class AdminConnection(asyncio.Protocol):
    """Wraps aiohttp's own protocol, which is created once the connection is admitted.

    A connection that has not authenticated is closed when it has no request answered for
    `timeout_s`: silent, in the middle of its TLS handshake, of a header or of a body."""

    def __init__(self, connections: AdminConnections) -> None:
        self._connections = connections
        self._handler: web.RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._admitted: AdmittedConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""
        """Came with the last of the TLS handshake."""

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        """Admit the connection or abort it, then begin with its TLS handshake or with HTTP."""
        transport = cast(asyncio.Transport, base)  # uvloop's is not a subclass
        peer = transport.get_extra_info("peername")
        try:
            # Counted before the handshake, which is what an attacker would spend our CPU with.
            self._admitted = self._connections.limiter.admit(str(peer[0]) if peer else "")
        except ConnectionRefused:
            # Without an answer: a peer over its limit must cost no TLS handshake and no request.
            transport.abort()
            return
        self._transport = transport
        self._arm()
        if self._connections.tls is None:
            self._begin(transport)
        else:
            # `start_tls` must read the handshake itself, from its first byte.
            transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(
                self._shake_hands(transport, self._connections.tls)
            )

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                transport, self, tls, server_side=True,
                ssl_handshake_timeout=self._connections.timeout_s,
            )  # fmt: skip
        except (OSError, ssl.SSLError):
            secure = None
        if secure is None or transport.is_closing():
            transport.abort()
            self.connection_lost(None)
        else:
            self._begin(secure)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._handler = self._connections.server()
        # aiohttp knows its own protocol only: by it the middleware finds the connection of a
        # request.
        self._connections.by_handler[self._handler] = self
        self._handler.connection_made(transport)
        early, self._early = self._early, b""
        if early:
            self._handler.data_received(early)

    def _arm(self) -> None:
        self._disarm()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._connections.timeout_s, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def answered(self, authenticated: bool) -> None:
        """A request was answered: an authenticated connection has no deadline any more, another one
        gets a new one."""
        if self._admitted is None:
            return
        if authenticated:
            self._disarm()
            self._admitted.authenticate()
        elif not self._admitted.authenticated:
            # Once authenticated, an anonymous request such as /healthz on the same connection
            # changes nothing.
            self._arm()

    def data_received(self, data: bytes) -> None:
        """Hand bytes to aiohttp, or keep them until it is there."""
        if self._handler is not None:
            self._handler.data_received(data)
        else:
            # Bounded by what one read of the TLS layer brings.
            self._early += data

    def eof_received(self) -> bool | None:
        """Hand the end of input to aiohttp."""
        if self._handler is not None:
            self._handler.eof_received()
        return None

    def pause_writing(self) -> None:
        """Hand the back pressure of the socket to aiohttp."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand the end of the back pressure to aiohttp."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give back the place in the limits, and tell aiohttp."""
        self._disarm()
        if self._admitted is not None:
            self._admitted.close()
        if self._handler is not None:
            self._connections.by_handler.pop(self._handler, None)
            self._handler.connection_lost(exc)
            self._handler = None
