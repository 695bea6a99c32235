"""The server of aiohttp: created with the first connection, since aiohttp is a fifth of the time in
which a node starts."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from lakemq.broker_core.api.administration.node import AdministeredNode
from lakemq.plugins.admin.accepting import KEEP_ALIVE_S
from lakemq.plugins.admin.api.openapi import Document
from lakemq.plugins.admin.api.service import AdminService
from lakemq.plugins.admin.http.access import AdminAccess
from lakemq.plugins.admin.http.application import AdminApplication, Answered
from lakemq.plugins.admin.http.health import PartitionHealth

_LINGERING_S: Final = 2.0
_LINE_MAX_BYTES: Final = 32 * 1024
"""Of a request's first line: a cursor, and texts that are percent-encoded."""


class AdminServer:
    """What requests of HTTP are answered by."""

    def __init__(
        self,
        node: AdministeredNode,
        access: AdminAccess,
        service: AdminService,
        health: PartitionHealth,
        body_max_bytes: int,
        answered: Answered,
    ) -> None:
        self.access = access
        document = Document(service.table, node.version, node.give_way)
        application = AdminApplication(node, access, service, health, document)
        self._runner = web.AppRunner(
            application.application(body_max_bytes, answered), access_log=None,
            shutdown_timeout=1.0, keepalive_timeout=KEEP_ALIVE_S, lingering_time=_LINGERING_S,
            max_line_size=_LINE_MAX_BYTES,
        )  # fmt: skip

    async def start(self) -> web.Server:
        """The factory of protocols."""
        await self._runner.setup()
        assert self._runner.server is not None
        return self._runner.server

    async def stop(self) -> None:
        """End the connections; requests under way have 1 s."""
        await self._runner.cleanup()
