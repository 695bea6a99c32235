"""A node for the admin API without a broker, a socket or a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lakemq.broker_core.administration.audit_log import NoAuditLog
from lakemq.broker_core.api.administration.audit import AuditLog, Change
from lakemq.broker_core.api.administration.node import AnswerPeer, PluginState, ReloadedPlugin
from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.broker_core.api.errors import Unavailable


class StubNode:
    """Implements `AdministeredNode`. `catalog`: what a test gives as its `CatalogAccess`."""

    def __init__(
        self,
        catalog: Any = None,
        *,
        node_id: str = "n1",
        broker: Any = None,
        operations: Any = None,
        group: Any = None,
        configuration: Any = None,
        routes: Sequence[AnyRoute] = (),
        plugins: Sequence[PluginState] = (),
        peers: Mapping[str, StubNode] | None = None,
    ) -> None:
        self.node_id = node_id
        self.cluster_id = "c"
        self.version = "0"
        self.host = "127.0.0.1"
        self.ready = True
        self.catalog = catalog
        self.broker = broker
        self.operations = operations
        self.group = group
        self.configuration = configuration
        self.audit: AuditLog = NoAuditLog()
        self.peers = peers if peers is not None else {}
        self.turns = 0
        """How often it gave way."""
        self.answer: AnswerPeer | None = None
        self._routes = routes
        self._plugins = plugins

    def addresses(self) -> Mapping[str, str]:
        return {}

    def routes(self) -> Sequence[AnyRoute]:
        return self._routes

    def plugins(self) -> Sequence[PluginState]:
        return self._plugins

    async def reload_plugin(self, name: str, *, dry_run: bool = False) -> ReloadedPlugin:
        raise NotImplementedError

    def resume_plugin(self, name: str) -> None:
        self._plugins = [
            replace(each, quarantines=()) if each.name == name else each for each in self._plugins
        ]

    def metrics(self) -> tuple[bytes, str]:
        return b"", "text/plain"

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def give_way(self) -> None:
        self.turns += 1

    async def ask(self, node_id: str, request: bytes) -> bytes:
        peer = self.peers.get(node_id)
        if peer is None or peer.answer is None:
            raise Unavailable(f"{node_id}: not reached")
        return await peer.answer(request)

    def answer_peers(self, answer: AnswerPeer) -> None:
        self.answer = answer


class ListedChanges:
    """Implements `AuditLog` in memory."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    async def note(self, change: Change) -> None:
        self.changes.append(change)

    async def newest(self, count: int, before_ms: int | None = None) -> Sequence[Any]:
        return []
