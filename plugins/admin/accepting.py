"""Connections of an HTTP server: counted before anything is spent on them, and closed when they
ask nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from lakemq.broker_core.api.limits.connection_limits import (
    AdmittedConnection,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionRefused,
)
from lakemq.plugins.admin.proxies import Proxies

KEEP_ALIVE_S: Final = 75.0
"""How long a connection that has authenticated may be idle between two requests."""


def limits_of(connections_max: int) -> ConnectionLimits:
    """One peer has half of the connections, as have those that have not authenticated; of these
    one peer has half again."""
    half = max(1, connections_max // 2)
    return ConnectionLimits(
        connections_max, half, half, max(1, half // 2), unauthenticated_max_bytes=None
    )


@dataclass(frozen=True)
class Admission:
    """What connections of one listener have in common."""

    limiter: ConnectionLimiter
    timeout_s: float
    """For a connection that has not authenticated: how long it may be without an answer."""
    tls: ssl.SSLContext | None
    proxies: Proxies


class AcceptedConnection(asyncio.Protocol):
    """Wraps the protocol of an HTTP server, which is created once the connection is admitted.

    A connection that has not authenticated is closed when it has no request answered for
    `timeout_s`: silent, in the middle of its TLS handshake, of a header or of a body."""

    def __init__(self, admission: Admission, serve: Callable[[], asyncio.Protocol]) -> None:
        """`serve`: makes the server's protocol."""
        self.handler: asyncio.Protocol | None = None
        """The server's protocol; None before the connection is admitted, and after its end."""
        self._admission = admission
        self._serve = serve
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
        host = str(peer[0]) if peer else ""
        try:
            # Counted before the handshake, which is what an attacker would spend our CPU with.
            self._admitted = self._admission.limiter.admit(
                host, for_many=host in self._admission.proxies
            )
        except ConnectionRefused:
            # Without an answer: a peer over its limit must cost no TLS handshake and no request.
            transport.abort()
            return
        self._transport = transport
        self.arm(self._admission.timeout_s)
        if self._admission.tls is None:
            self._begin(transport)
        else:
            # `start_tls` must read the handshake itself, from its first byte.
            transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(
                self._shake_hands(transport, self._admission.tls)
            )

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                transport, self, tls, server_side=True,
                ssl_handshake_timeout=self._admission.timeout_s,
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
        self.handler = self._serve()
        self.handler.connection_made(transport)
        early, self._early = self._early, b""
        if early:
            self.handler.data_received(early)

    def arm(self, seconds: float) -> None:
        """Abort the connection when so long has passed."""
        self.disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def disarm(self) -> None:
        """Do not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Close it at once, whatever waits to be sent."""
        if self._transport is not None:
            self._transport.abort()

    def answered(self, *, authenticated: bool) -> None:
        """A request was answered: an authenticated connection has no deadline any more, another one
        gets a new one."""
        if authenticated:
            self.disarm()
            self.authenticate()
        elif not self.authenticated:
            # Once authenticated, an anonymous request such as /healthz on the same connection
            # changes nothing.
            self.arm(self._admission.timeout_s)

    @property
    def authenticated(self) -> bool:
        """Whether a request of it was, or it is gone."""
        return self._admitted is None or self._admitted.authenticated

    def authenticate(self) -> None:
        """Count it with those that have authenticated."""
        if self._admitted is not None:
            self._admitted.authenticate()

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the server, or keep them until it is there."""
        if self.handler is not None:
            self.handler.data_received(data)
        else:
            # Bounded by what one read of the TLS layer brings.
            self._early += data

    def eof_received(self) -> bool | None:
        """Hand the end of input to the server."""
        if self.handler is not None:
            self.handler.eof_received()
        return None

    def pause_writing(self) -> None:
        """Hand the back pressure of the socket to the server."""
        if self.handler is not None:
            self.handler.pause_writing()

    def resume_writing(self) -> None:
        """Hand the end of the back pressure to the server."""
        if self.handler is not None:
            self.handler.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give back the place in the limits, and tell the server."""
        self.disarm()
        if self._admitted is not None:
            self._admitted.close()
            self._admitted = None
        if self.handler is not None:
            handler, self.handler = self.handler, None
            handler.connection_lost(cast(Exception | None, exc))
