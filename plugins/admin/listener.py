"""The listener of the admin API."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.broker_core.api.errors import StartupError
from lakemq.plugins.admin.accepting import limits_of
from lakemq.plugins.admin.config import AdminSettings
from lakemq.plugins.admin.http.connections import AdminConnections
from lakemq.plugins.admin.http.health import PartitionHealth
from lakemq.plugins.admin.http.tls import tls_of
from lakemq.plugins.admin.proxies import Proxies

if TYPE_CHECKING:
    from aiohttp import web

    from lakemq.plugins.admin.api.service import AdminService
    from lakemq.plugins.admin.dashboard.child import DashboardChild
    from lakemq.plugins.admin.http.server import AdminServer

_OWN: Final = "lakemq"
"""The distribution whose routes do not clash."""
_API: Final = ("lakemq.plugins.admin.resources.all", "lakemq.plugins.admin.api.service")
_SERVER: Final = "lakemq.plugins.admin.http.server"


class AdminListener:
    """Implements the `Listener` port over aiohttp."""

    name = "admin"

    def __init__(
        self, node: AdministeredNode, settings: AdminSettings, *, answers_peers_only: bool = False
    ) -> None:
        """`answers_peers_only`: no port is opened. Raises ConfigError: TLS, or a dashboard that is
        not installed."""
        self._node = node
        self._settings = settings
        self._answers_peers_only = answers_peers_only
        self._host = settings.host or node.host
        self._tls = tls_of(settings, self._host)
        self._dashboard_secret = secrets.token_urlsafe(32)
        self._proxies = Proxies("admin", settings.proxies)
        self._health = PartitionHealth(node.catalog, node.now_ms, node.give_way)
        self._service: AdminService | None = None
        self._server: AdminServer | None = None
        self._connections: AdminConnections | None = None
        self._dashboard: DashboardChild | None = None
        if settings.dashboard:
            from lakemq.plugins.admin.dashboard.child import check_installed

            check_installed()

    async def start(self) -> None:
        """Listen. StartupError if the port is taken; PluginError for routes that clash."""
        self._node.answer_peers(self._answer_first_peer)
        # LakeMQ's own routes are made when one is asked for: a node starts sooner.
        if any(each.enabled and each.distribution != _OWN for each in self._node.plugins()):
            await self._open_service()
        if self._answers_peers_only:
            return
        settings = self._settings
        self._connections = AdminConnections(
            self._open_server,
            limits_of(settings.connections_max),
            settings.unauthenticated_timeout_ms / 1000,
            self._tls,
            self._proxies,
        )
        try:
            await self._connections.listen(self._host, settings.port)
        except OSError as error:
            raise StartupError(
                f"admin: cannot listen on {self._host}:{settings.port}: {error.strerror}"
            ) from None
        if settings.dashboard:
            from lakemq.plugins.admin.dashboard.child import DashboardChild, arguments_of

            self._dashboard = DashboardChild(
                arguments_of(settings, self.addresses()[0]), self._dashboard_secret
            )
            self._dashboard.start()

    async def _open_service(self) -> AdminService:
        """Raises PluginError: routes clash."""
        # In a thread, so that the event loop goes on: it takes some hundredths of a second.
        for name in _API:
            await asyncio.to_thread(import_module, name)
        from lakemq.plugins.admin.api.service import AdminService
        from lakemq.plugins.admin.resources.all import resources

        if self._service is None:
            routes = [*resources(self._node, self._settings.body_max_bytes), *self._node.routes()]
            self._service = AdminService(self._node, routes, self._node.give_way)
        return self._service

    async def _answer_first_peer(self, asked: bytes) -> bytes:
        return await (await self._open_service()).answer_peer(asked)

    async def _open_server(self) -> web.Server:
        service = await self._open_service()
        # In a thread, so that the event loop goes on: it takes some tenths of a second.
        await asyncio.to_thread(import_module, _SERVER)
        from lakemq.plugins.admin.http.access import AdminAccess
        from lakemq.plugins.admin.http.server import AdminServer

        node, settings = self._node, self._settings
        access = AdminAccess(node.catalog, settings.hosts, self._proxies, self._dashboard_secret)
        self._server = AdminServer(
            node, access, service, self._health, settings.body_max_bytes, self._answered
        )
        return await self._server.start()

    def reconfigure(self, settings: AdminSettings) -> Callable[[], None]:
        """See `Reconfigurable`."""
        tls, used = self._tls, self._settings
        if (settings.tls_cert, settings.tls_key) != (used.tls_cert, used.tls_key):
            tls = tls_of(settings, self._host)

        def apply() -> None:
            self._tls, self._settings = tls, settings
            if self._server is not None:
                self._server.access.allow(settings.hosts)
            if self._connections is not None:
                self._connections.admission.tls = tls
            if self._dashboard is not None:
                from lakemq.plugins.admin.dashboard.child import arguments_of

                self._dashboard.use(arguments_of(settings, self.addresses()[0]))

        return apply

    def _answered(self, request: web.BaseRequest, authenticated: bool) -> None:
        if self._connections is not None:
            self._connections.answered(request, authenticated=authenticated)

    def addresses(self) -> list[str]:
        """`host:port` of the sockets that are bound; none before `start`."""
        return self._connections.addresses() if self._connections is not None else []

    async def stop(self) -> None:
        """Accept no more, then end the connections; requests under way have 1 s."""
        if self._dashboard is not None:
            await self._dashboard.stop()
        if self._connections is not None:
            self._connections.close()
        await self._health.stop()
        if self._server is not None:
            await self._server.stop()
