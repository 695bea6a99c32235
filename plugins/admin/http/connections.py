"""The sockets of the HTTP admin: how many, whose, and how long before they authenticate."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from aiohttp import web

from lakemq.broker_core.api.limits.connection_limits import ConnectionLimiter, ConnectionLimits
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles
from lakemq.plugins.admin.accepting import AcceptedConnection, Admission
from lakemq.plugins.admin.proxies import Proxies

BACKLOG: Final = 128


class AdminConnections:
    """Accepts connections for an aiohttp server."""

    def __init__(
        self,
        server: web.Server,
        limits: ConnectionLimits,
        unauthenticated_timeout_s: float,
        tls: WatchedFiles[ssl.SSLContext] | None,
        proxies: Proxies,
    ) -> None:
        self.limiter = ConnectionLimiter(limits)
        self.server = server
        self.admission = Admission(self.limiter, unauthenticated_timeout_s, tls, proxies)
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
            connection.answered(authenticated=authenticated)


class AdminConnection(AcceptedConnection):
    """Known by aiohttp's own protocol: by it alone the middleware finds the connection of a
    request."""

    def __init__(self, connections: AdminConnections) -> None:
        super().__init__(connections.admission, self._served)
        self._connections = connections

    def _served(self) -> asyncio.Protocol:
        made = self._connections.server()
        self._connections.by_handler[made] = self
        return made

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget it, too."""
        self._connections.by_handler.pop(self.handler, None)
        super().connection_lost(exc)
