"""Connections of an HTTP server: counted before anything is spent on them, and closed when they
ask nothing."""

from __future__ import annotations

import asyncio
import os
import socket
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
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles
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


@dataclass
class Admission:
    """What connections of one listener have in common."""

    limiter: ConnectionLimiter
    timeout_s: float
    """For a connection that has not authenticated: how long it may be without an answer."""
    tls: WatchedFiles[ssl.SSLContext] | None
    """For connections to come; None: plain text."""
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

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        """Admit the connection or abort it, then begin with its TLS handshake or with HTTP."""
        transport = cast(asyncio.Transport, base)  # uvloop's is not a subclass
        if self._handshake is not None:  # that of the TLS layer: the handshake is over
            self._begin(transport)
            return
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
        tls = self._admission.tls
        if tls is None:
            self._begin(transport)
        else:
            self._secure(transport, tls.current())

    def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Begin the handshake, on a transport of its own: uvloop reads from this one before
        `start_tls` can take it over, and the client's first words would be lost."""
        try:
            accepted = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:  # no descriptors are left
            transport.abort()
            return
        accepted.setblocking(False)
        self._transport = None
        transport.set_protocol(asyncio.Protocol())
        transport.abort()
        self._handshake = asyncio.get_running_loop().create_task(self._shake_hands(accepted, tls))

    async def _shake_hands(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self, accepted, ssl=tls, ssl_handshake_timeout=self._admission.timeout_s
            )
        except BaseException as error:
            accepted.close()
            self.connection_lost(None)
            # A handshake that fails is the client's affair; what else is raised is a fault here.
            if not isinstance(error, OSError):
                raise

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.handler = self._serve()
        self.handler.connection_made(transport)

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
        elif self._handshake is not None:
            self._handshake.cancel()

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
        """Hand bytes to the server."""
        if self.handler is not None:
            self.handler.data_received(data)

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
