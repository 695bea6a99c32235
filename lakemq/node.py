"""A node: opens everything in order, closes in reverse. The only place that wires the rooms."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from opentelemetry.metrics import Meter, Observation

from lakemq import __version__
from lakemq.administration import NodeAdministration
from lakemq.broker_core.api.administration.node import CatalogAccess
from lakemq.broker_core.api.errors import LakeMQError, PluginError, StartupError
from lakemq.broker_core.api.ports import (
    Connected,
    Listener,
    PluginContext,
    ProcessShare,
    Sharing,
    Storage,
)
from lakemq.broker_core.api.records.stored import SKIPPED
from lakemq.broker_core.api.types import PluginInfo
from lakemq.broker_core.broker import CoreBroker
from lakemq.broker_core.cluster.channels.metrics import register_channel_metrics
from lakemq.broker_core.cluster.identity import PeerIdentity, PeerTls
from lakemq.broker_core.cluster.local.sockets import ProcessSockets
from lakemq.broker_core.cluster.network import PeerNetwork
from lakemq.broker_core.cluster_nodes import ClusterNodes
from lakemq.broker_core.configuration.config import Config
from lakemq.broker_core.plugin_host import LoadedPlugin, PluginHost, PluginPoint
from lakemq.broker_core.publishing.interception import Interception
from lakemq.broker_core.publishing.interception_metrics import register_interception_metrics
from lakemq.broker_core.publishing.traced_broker import TracedBroker
from lakemq.broker_core.replication_metrics import register_replication_metrics
from lakemq.broker_core.security.assembly import Security
from lakemq.broker_core.security.metrics import register_metrics
from lakemq.broker_core.topics.topic_admin import default_topic_config
from lakemq.config_checks import check_together
from lakemq.data_folder import DataFolder, storage_id
from lakemq.dynamic_settings import DynamicSettings
from lakemq.loop_watchdog import LoopWatchdog
from lakemq.member_catalog import MemberCatalog
from lakemq.meta_service.api.errors import StartupFailed
from lakemq.meta_service.api.remote.control_calls import HeartbeatReport
from lakemq.meta_service.api.types import PROCESS_ROLE, NodeRegistration
from lakemq.meta_service.server.member import MetaMember
from lakemq.meta_service.server.tls import load_pem
from lakemq.node_load import NodeLoad
from lakemq.plugin_reload.parts import PluginParts
from lakemq.plugin_reload.reloads import PluginReloads
from lakemq.processes.plan import client_port
from lakemq.registration import Registration
from lakemq.reloading import Reloads
from lakemq.remote_meta import RemoteMeta
from lakemq.telemetry.process import register_process_metrics
from lakemq.telemetry.provider import Telemetry

_log = logging.getLogger(__name__)
VERSION = __version__


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Node:
    """One process of LakeMQ. `start`, wait for `failed` or a signal, `stop`."""

    def __init__(
        self,
        config: Config,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        plugins: Iterable[PluginPoint] | None = None,
    ) -> None:
        """`plugins`: where to look for plugins; None: among the installed distributions."""
        self.config = config
        self.node_id = config.node.id
        self.data_dir = Path(config.node.data_dir).expanduser().absolute()
        self.plugins = PluginHost(config.source, plugins)
        self.telemetry = Telemetry(config.telemetry, self.node_id, VERSION)
        self.listeners: list[Listener] = []
        self.broker: CoreBroker
        """Of a node that has this role."""
        self.failed: asyncio.Future[BaseException]
        """Done when the node can't go on. There once it has started."""
        self._now_ms = now_ms
        self._member: MetaMember | RemoteMeta
        self.reloads: Reloads
        self._administration: NodeAdministration
        self._registration: Registration | None = None
        self._parts = PluginParts(
            self.plugins, self._hook_arguments, lambda name: self.telemetry.meter(name)
        )
        self._plugin_reloads: PluginReloads
        self._load: NodeLoad
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Raises ConfigError, PluginError or StartupError, with everything closed again."""
        try:
            await self._start()
        except BaseException:
            # Also when cancelled: the lock of the data folder and the sockets must not outlive a
            # start that failed.
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        self.plugins.load()
        for warning in check_together(self.config, self.plugins.enabled()):
            _log.warning("%s", warning)
        self.reloads = Reloads(self.config, self.plugins, self._use)
        self.reloads.observe(self.telemetry.meter("lakemq.node"))
        self._plugin_reloads = PluginReloads(
            self.plugins, self._parts, self.reloads, self.listeners, self._use_parts
        )
        folder = DataFolder(self.data_dir, self.node_id)
        # Before the MetaService and the storage: both write below it, and two processes must not.
        folder.open()
        self._stack.callback(folder.close)
        self._stack.callback(self.telemetry.close)
        if self.telemetry.tracing is not None:
            self._stack.push_async_callback(self.telemetry.tracing.stop)
        register_process_metrics(self.telemetry.meter("process"), self.data_dir)
        # Before storage and security, which take the catalog's client; the stack closes in reverse,
        # so the catalog outlives all that use it.
        await self._start_meta()
        self.reloads.store = dynamic = DynamicSettings(
            self._member.client(), self.reloads.use_dynamic
        )
        if "broker" in self.config.node.roles:
            await self._start_broker()
        else:
            await self._start_member()
        await dynamic.start()
        self._stack.push_async_callback(dynamic.stop)
        if self.telemetry.push is not None:
            self.telemetry.push.start()
            # The first to be stopped: the last push still reads all figures.
            self._stack.push_async_callback(self.telemetry.push.stop)

    async def _start_member(self) -> None:
        """The rest of a node that is a member of the MetaService and no broker."""
        await self._start_security()
        client, access = self._member.client(), self.security.access
        catalog = MemberCatalog(client, access, default_topic_config(self.config.topics))
        await catalog.start()
        self._stack.push_async_callback(catalog.stop)
        self.failed = catalog.failed
        self._administration = self._administered(catalog, None)
        self._stack.push_async_callback(self._plugin_reloads.stop)
        await self._start_admin()
        self._administration.ready = True

    async def _start_admin(self) -> None:
        for plugin, listener in self._admin_listeners():
            await self._start_listener(listener, f"plugin {plugin.name}: ")
            self._stack.push_async_callback(listener.stop)

    async def _start_security(self) -> None:
        self.security = self._security()
        register_metrics(self.telemetry.meter("broker_core.security"), self.security)
        await self.security.start()
        self._stack.push_async_callback(self.security.stop)

    async def _start_broker(self) -> None:
        storage, storage_folder = self._storage()
        await storage.start()
        self._stack.push_async_callback(storage.stop)
        await self._start_security()
        network = self._network()
        self.broker = self._core(storage, network)
        await self.broker.start()
        self._stack.push_async_callback(self.broker.stop)
        assert self.broker.failed is not None
        self.failed = self.broker.failed
        await self._start_listener(network.server)
        self._stack.push_async_callback(network.server.stop)
        self._administration = self._administered(self.broker, self.broker)
        self._stack.push_async_callback(self._stop_plugin_listeners)
        for plugin, listener in self._parts.collect("register_listeners"):
            await self._start_listener(listener, f"plugin {plugin.name}: ")
        self._stack.push_async_callback(self._plugin_reloads.stop)
        # The admin is last: its routes are those of the listeners that have started.
        await self._start_admin()
        # Only now, with every port bound: the catalog may give this node partitions as soon as it
        # is registered.
        await self._register(storage_id(storage_folder))

    async def _start_listener(self, listener: Listener, owner: str = "") -> None:
        try:
            await listener.start()
        except (LakeMQError, OSError):
            # These name their cause already.
            raise
        except Exception as error:  # code of a plugin
            raise PluginError(
                f"{owner}listener {listener.name}: {type(error).__name__}: {error}"
            ) from error
        self.listeners.append(listener)

    async def _stop_plugin_listeners(self) -> None:
        """Those that run now: reloads may have replaced some."""
        own = [listener for _, listener in self._parts.of("register_listeners")]
        async with AsyncExitStack() as stack:
            for listener in self.listeners:
                if any(listener is each for each in own):
                    stack.push_async_callback(listener.stop)

    def watch_loop(self) -> None:
        """Name what holds the event loop, from now on: a start may take its time."""
        threshold_ms = self.config.node.loop_stall_ms
        if threshold_ms:
            watchdog = LoopWatchdog(threshold_ms / 1000)
            watchdog.observe(self.telemetry.meter("lakemq.node"))
            # Called when the start is over, since loading plugins and recovery hold the loop
            # without being a fault.
            watchdog.start()
            self._stack.callback(watchdog.stop)

    async def _start_meta(self) -> None:
        settings, node = self.config.meta, self.config.node
        if "meta" not in node.roles:
            remote = self._member = RemoteMeta(settings)
            await remote.start()
            self._stack.push_async_callback(remote.stop)
            return
        self._member = MetaMember(
            settings,
            node_id=self.node_id,
            host=settings.host or node.host,
            # A folder of its own: plugins have theirs by name.
            data_dir=self.data_dir / "meta",
            meter=self.telemetry.meter("meta_service"),
        )
        try:
            await self._member.start()
        except StartupFailed as error:
            raise StartupError(f"meta: {error}") from error
        self._stack.push_async_callback(self._member.stop)

    def _context(self, plugin: LoadedPlugin, meter: Meter | None = None) -> PluginContext:
        return PluginContext(
            plugin.name,
            plugin.settings,
            self.node_id,
            self.data_dir / plugin.name,
            meter or self._parts.meter(plugin.name),
            self.telemetry.traces,
            self._process_share(),
        )

    def _process_share(self) -> ProcessShare | None:
        number = self.config.node.process
        return ProcessShare(number, client_port(self.config, number)) if number else None

    def _storage(self) -> tuple[Storage, Path]:
        """The storage engine, and the folder that holds its data."""
        found = self.plugins.collect(
            "register_storage", lambda plugin: {"context": self._context(plugin)}
        )
        # With two engines it would be chance which one holds a topic.
        if len(found) != 1:
            names = ", ".join(plugin.name for plugin, _ in found) or "none is"
            raise PluginError(f"exactly one storage plugin must be on; on: {names}")
        plugin, storage = found[0]
        return storage, self.data_dir / plugin.name

    def _hook_arguments(self, hook: str, meter: Meter, plugin: LoadedPlugin) -> dict[str, object]:
        given: dict[str, object] = {"context": self._context(plugin, meter)}
        return {**given, "broker": self.broker} if hook == "register_listeners" else given

    def _access_parts(self) -> dict[str, list[Any]]:
        """What plugins have for `Security`."""
        return {
            "authenticators": [part for _, part in self._parts.of("register_authenticator")],
            "authorizers": [part for _, part in self._parts.of("register_authorizer")],
            "mechanisms": [part for _, part in self._parts.of("register_mechanisms")],
        }

    def _use_parts(self, renewed: str) -> None:
        """Go on with what plugins have now; one has new code."""
        self.security.use_plugins(**self._access_parts())
        if "broker" in self.config.node.roles:
            chain = self._parts.of("register_interceptors")
            self.broker.interception.use(chain, renewed)

    def _security(self) -> Security:
        for hook in ("register_mechanisms", "register_authenticator", "register_authorizer"):
            self._parts.collect(hook)
        return Security(
            self.config.security,
            self._now_ms,
            meta=self._member.client(),
            folder=self.data_dir / "security",
            **self._access_parts(),
        )

    def _network(self) -> PeerNetwork:
        config = self.config
        try:
            pem = load_pem(config.meta)
        except StartupFailed as error:
            raise StartupError(f"meta: {error}") from error
        return PeerNetwork.over(
            PeerIdentity(self.node_id, self._member.cluster_id, self._broker_epoch),
            ClusterNodes(self._member.client()),
            settings=config.cluster,
            host=config.meta.host or config.node.host,
            tls=None if pem is None else PeerTls(pem.certificate, pem.key, pem.authority),
            sockets=ProcessSockets(self.node_id, self.data_dir, config.node.process)
            if config.node.process
            else None,
        )

    def _broker_epoch(self) -> int:
        return self._registration.broker_epoch if self._registration is not None else 0

    def _core(self, storage: Storage, network: PeerNetwork) -> CoreBroker:
        self._parts.collect("register_interceptors")
        chain = self._parts.of("register_interceptors")
        interception = Interception(chain, time.perf_counter, self.config.interceptors)
        self.telemetry.meter("broker_core").create_observable_counter(
            "lakemq.corrupt_batches",
            [lambda _: [Observation(SKIPPED.count)]],
            "{batch}",
            "Corrupt stored batches that a reader skipped.",
        )
        register_interception_metrics(self.telemetry.meter("broker_core"), interception)
        traces = self.telemetry.traces
        make = CoreBroker if traces is None else partial(TracedBroker, traces=traces)
        broker = make(
            node_id=self.node_id,
            cluster_id=self._member.cluster_id,
            meta=self._member.client(),
            storage=storage,
            access=self.security.access,
            interception=interception,
            topic_settings=self.config.topics,
            transaction_settings=self.config.transactions,
            schedule_settings=self.config.schedules,
            network=network,
            control=self._member.control(),
            cluster_settings=self.config.cluster,
            audit_retention_ms=self.config.security.audit_retention(),
            now_ms=self._now_ms,
            plugins=lambda: [
                PluginInfo(each.name, each.version, each.distribution, each.enabled, each.hooks)
                for each in self.plugins.plugins
            ],
        )
        register_replication_metrics(
            self.telemetry.meter("broker_core"),
            self.node_id,
            broker.replicas.replication,
            broker.topics,
        )
        register_channel_metrics(self.telemetry.meter("broker_core"), broker.channels)
        return broker

    def _administered(
        self, catalog: CatalogAccess, broker: CoreBroker | None
    ) -> NodeAdministration:
        made = NodeAdministration(
            node_id=self.node_id,
            cluster_id=self._member.cluster_id,
            version=VERSION,
            host=self.config.node.host,
            catalog=catalog,
            broker=broker,
            control=self._member.control(),
            security=self.security,
            plugins=self.plugins,
            configuration=self.reloads,
            plugin_reloads=self._plugin_reloads,
            telemetry=self.telemetry,
            addresses=self.addresses,
            listeners=self.listeners,
            now_ms=self._now_ms,
        )
        if isinstance(self._member, MetaMember):
            self._member.on_operator_call = made.note_operator_call
        return made

    def _admin_listeners(self) -> list[tuple[LoadedPlugin, Listener]]:
        return self.plugins.collect(
            "register_admin",
            lambda plugin: {"context": self._context(plugin), "node": self._administration},
        )

    async def _register(self, storage: str) -> None:
        """Tell the catalog where this node can be reached, then say so to load balancers."""
        node = NodeRegistration(
            self.node_id,
            self.addresses(),
            self.config.node.rack,
            VERSION,
            heartbeats=True,
            storage_id=storage,
            roles=(*self.config.node.roles, *([PROCESS_ROLE] if self.config.node.process else [])),
        )
        self._load = NodeLoad(self.data_dir)
        self._registration = registration = Registration(
            self._member.control(),
            node,
            self._heartbeat,
            self._fail,
            self.broker.replicas,
            self.broker.disowned(),
            self.broker.leaderless,
        )
        await registration.start()
        self._stack.push_async_callback(registration.stop)
        # topics made before any node had registered have their leader now
        await self.broker.refresh()
        self._administration.ready = True

    def _heartbeat(self) -> HeartbeatReport:
        report = self.broker.heartbeat(time.monotonic())
        counted = [each.connections() for each in self.listeners if isinstance(each, Connected)]
        load = {**self._load(), **report.load, "connections": float(sum(counted))}
        return report._replace(load=load)

    def _fail(self, reason: str) -> None:
        # Storage and registration may both fail: the first reason is shown.
        if not self.failed.done():
            self.failed.set_result(StartupError(reason))

    def addresses(self) -> dict[str, str]:
        """Listener name -> `host:port`, with the ports that are really bound."""
        found = {
            listener.name: address
            for listener in self.listeners
            for address in listener.addresses()
        }
        return {**found, **self._member.addresses()}

    def shared_addresses(self) -> dict[str, str]:
        """Listener name -> `host:port` at which any process of the node answers."""
        return {
            listener.name: address
            for listener in self.listeners
            if isinstance(listener, Sharing)
            for address in listener.shared_addresses()
        }

    def _use(self, before: Config, after: Config) -> None:
        """Go on with another configuration, of which only what is `Reloadable` differs."""
        self.config = after
        if before.node.log_level != after.node.log_level:
            logging.getLogger().setLevel(after.node.log_level.upper())
        if before.telemetry != after.telemetry:
            self.telemetry.reconfigure(after.telemetry)
        if before.security != after.security:
            self.security.reconfigure(after.security)
        if "broker" in after.node.roles:
            self.broker.reconfigure(
                after.topics, after.transactions, after.schedules, after.cluster
            )
            self.broker.interception.reconfigure(after.interceptors)

    async def stop(self) -> None:
        """Say goodbye to clients, flush, close. Safe to call after a failed start."""
        await self._stack.aclose()
