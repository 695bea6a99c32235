"""The sockets of the HTTP admin: how many, whose, and how long before they authenticate."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.limits.connection_limits import ConnectionLimiter, ConnectionLimits
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles
from lakemq.plugins.admin.accepting import AcceptedConnection, Admission
from lakemq.plugins.admin.proxies import Proxies

if TYPE_CHECKING:
    from aiohttp import web

_log = logging.getLogger(__name__)
BACKLOG: Final = 128


class AdminConnections:
    """Accepts connections for an aiohttp server."""

    def __init__(
        self,
        open_server: Callable[[], Awaitable[web.Server]],
        limits: ConnectionLimits,
        unauthenticated_timeout_s: float,
        tls: WatchedFiles[ssl.SSLContext] | None,
        proxies: Proxies,
    ) -> None:
        """`open_server` is awaited when the first connection comes, while it waits."""
        self.limiter = ConnectionLimiter(limits)
        self.server: web.Server | None = None
        self.admission = Admission(self.limiter, unauthenticated_timeout_s, tls, proxies)
        self.by_handler: dict[object, AdminConnection] = {}
        self._listening: asyncio.Server | None = None
        self._open_server = open_server
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[AdminConnection] = []

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
        if self._opening is not None:
            self._opening.cancel()

    def wait_for_server(self, connection: AdminConnection) -> None:
        """Begin with `connection` when the server is there."""
        self._waiting.append(connection)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            self.server = await self._open_server()
        except Exception:
            # The next connection tries again.
            _log.exception("admin: HTTP can not be served")
        finally:
            self._opening = None
            waiting, self._waiting = self._waiting, []
            for connection in waiting:
                if self.server is None:
                    connection.abort()
                else:
                    connection.begin()

    def answered(self, request: web.BaseRequest, *, authenticated: bool) -> None:
        """Note that a request of the connection was answered."""
        connection = self.by_handler.get(request.protocol)
        if connection is not None:
            connection.answered(authenticated=authenticated)


class AdminConnection(AcceptedConnection):
    """Known by aiohttp's own protocol: by it alone the middleware finds the connection of a
    request."""

    def __init__(self, connections: AdminConnections) -> None:
        super().__init__(connections.admission, self._served)
        self._connections = connections
        self._early = b""
        """What came before the server was there."""

    def _begin(self, transport: asyncio.Transport) -> None:
        if self._connections.server is None:
            self._transport = transport
            self.disarm()  # it is we who let it wait
            self._connections.wait_for_server(self)
        else:
            super()._begin(transport)

    def begin(self) -> None:
        """The server is there."""
        transport = self._transport
        if self._admitted is None or transport is None or transport.is_closing():
            return
        self.arm(self._admission.timeout_s)
        super()._begin(transport)
        if self._early:
            super().data_received(self._early)
            self._early = b""
        transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the server, when it is there."""
        if self.handler is None and self._transport is not None:
            # No more than what one read of the socket gives.
            self._early += data
            self._transport.pause_reading()
        else:
            super().data_received(data)

    def _served(self) -> asyncio.Protocol:
        assert self._connections.server is not None
        made = self._connections.server()
        self._connections.by_handler[made] = self
        return made

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it, too."""
        self._connections.by_handler.pop(self.handler, None)
        super().connection_lost(exc)
