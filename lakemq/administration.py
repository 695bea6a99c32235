"""This node, as the admin API sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from lakemq.broker_core.administration.audit_log import NoAuditLog
from lakemq.broker_core.api.administration.audit import AuditLog, Change
from lakemq.broker_core.api.administration.node import (
    AnswerPeer,
    CatalogAccess,
    PluginQuarantine,
    PluginState,
    ReloadedPlugin,
)
from lakemq.broker_core.api.administration.routes import Administered, AnyRoute
from lakemq.broker_core.api.administration.settings import NodeConfiguration
from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.ports import Listener
from lakemq.broker_core.api.types import ANONYMOUS, AccessContext, Principal
from lakemq.broker_core.broker import CoreBroker
from lakemq.broker_core.cluster.administer import METHOD, Administering, administer
from lakemq.broker_core.configuration.changes import masked
from lakemq.broker_core.plugin_host import LoadedPlugin, PluginHost
from lakemq.broker_core.security.assembly import Security
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.server.operator_calls import OperatorCall
from lakemq.plugin_reload.reloads import PluginReloads
from lakemq.telemetry.provider import Telemetry

if TYPE_CHECKING:
    from lakemq.broker_core.administration.meta_group import MetaGroup
    from lakemq.broker_core.administration.operations import Operations


class NodeAdministration:
    """Implements `AdministeredNode`."""

    def __init__(
        self,
        *,
        node_id: str,
        cluster_id: str,
        version: str,
        host: str,
        catalog: CatalogAccess,
        broker: CoreBroker | None,
        control: RemoteClient,
        security: Security,
        plugins: PluginHost,
        configuration: NodeConfiguration,
        plugin_reloads: PluginReloads,
        telemetry: Telemetry,
        addresses: Callable[[], Mapping[str, str]],
        listeners: Sequence[Listener],
        now_ms: Callable[[], int],
    ) -> None:
        """`listeners`: those that have started, which grow meanwhile."""
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.version = version
        self.host = host
        self.ready = False
        self.catalog = catalog
        self.broker = broker
        self._control = control
        self._security = security
        self.audit: AuditLog = NoAuditLog()
        self.configuration = configuration
        self._plugin_reloads = plugin_reloads
        self.now_ms = now_ms
        self.addresses = addresses
        self._core = broker
        self._plugins = plugins
        self._telemetry = telemetry
        self._listeners = listeners
        self._administering = Administering()
        if broker is not None:
            self.audit = broker.audit
            broker.network.server.serve_call(METHOD, self._administering.answer)

    @cached_property
    def operations(self) -> Operations:
        """Imported when an operator asks for something, as `group` is: no start needs them."""
        from lakemq.broker_core.administration.key_store import KeyStore
        from lakemq.broker_core.administration.operations import Operations

        keys = KeyStore(self._control, self._security.api_keys, self.now_ms)
        return Operations(self._control, self.catalog, self._security.rule_book, keys)

    @cached_property
    def group(self) -> MetaGroup:
        """See `AdministeredNode`."""
        from lakemq.broker_core.administration.meta_group import MetaGroup

        return MetaGroup(self._control)

    async def note_operator_call(self, call: OperatorCall) -> None:
        """Keep what an operator changed at the MetaService's own port."""
        who = Principal(call.who, "certificate") if call.who else ANONYMOUS
        context = AccessContext("meta", peer_host=call.host, listener="meta")
        outcome = call.code or "done"
        await self.audit.note(
            Change(who, context, call.action, call.resource, outcome, call.detail, by="meta")
        )

    def routes(self) -> Sequence[AnyRoute]:
        """Of the listeners that have started."""
        return [
            route
            for listener in self._listeners
            if isinstance(listener, Administered)
            for route in listener.admin_routes()
        ]

    def plugins(self) -> Sequence[PluginState]:
        """All that are installed."""
        return [_state(each, self._quarantines(each.name)) for each in self._plugins.plugins]

    def _quarantines(self, plugin: str) -> Sequence[PluginQuarantine]:
        if self._core is None:
            return ()
        interception = self._core.interception
        records = "stored" if interception.is_open(plugin) else "refused"
        return [
            PluginQuarantine(each.topic, each.reason, round(interception.wait_s(each), 1), records)
            for each in interception.quarantines().get(plugin, ())
        ]

    def resume_plugin(self, name: str) -> None:
        """See `AdministeredNode`."""
        if self._core is not None:
            self._core.interception.resume(name)

    async def reload_plugin(self, name: str, *, dry_run: bool = False) -> ReloadedPlugin:
        """See `AdministeredNode`."""
        return await self._plugin_reloads.reload(name, dry_run=dry_run)

    def metrics(self) -> tuple[bytes, str]:
        """(text in Prometheus' format, content type)."""
        return self._telemetry.prometheus_text(), self._telemetry.content_type

    async def give_way(self) -> None:
        """Let others have their turn on the event loop."""
        await asyncio.sleep(0)

    async def ask(self, node_id: str, request: bytes) -> bytes:
        """See `AdministeredNode`."""
        if self._core is None:
            raise Unavailable(f"{self.node_id} is no broker and reaches none: ask {node_id}")
        return await administer(self._core.network.peers, node_id, request)

    def answer_peers(self, answer: AnswerPeer) -> None:
        """Have `answer` called with what other brokers ask."""
        self._administering.answer_with = answer


def _state(plugin: LoadedPlugin, quarantines: Sequence[PluginQuarantine]) -> PluginState:
    settings = masked(plugin.settings) if plugin.enabled else {}
    return PluginState(
        plugin.name, plugin.version, plugin.distribution, plugin.enabled, plugin.hooks,
        plugin.error, settings, quarantines,
    )  # fmt: skip
