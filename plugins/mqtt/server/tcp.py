"""The listeners of the MQTT plugin: who may connect, and with what TLS. Edge."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from lakemq.broker_core.api.administration.routes import AnyRoute
from lakemq.broker_core.api.errors import StartupError
from lakemq.broker_core.api.limits.connection_limits import (
    AdmittedConnection,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionRefused,
)
from lakemq.broker_core.api.limits.rates import Bucket
from lakemq.broker_core.api.tls_files.server_context import watched_context
from lakemq.broker_core.api.tls_files.watched_files import WatchedFiles
from lakemq.plugins.mqtt.config import ListenerSettings, MqttSettings
from lakemq.plugins.mqtt.server.accepting import (
    Acceptor,
    link_bytes,
    listening_sockets,
    unix_socket,
)
from lakemq.plugins.mqtt.server.engine import MqttEngine
from lakemq.plugins.mqtt.server.links import SocketLink
from lakemq.plugins.mqtt.session.rates import Throttle, throttle_of

_CERTIFICATE_CHECK_TICKS: Final = 10


class MqttListener:
    """One address that clients connect to."""

    def __init__(
        self, settings: ListenerSettings, engine: MqttEngine, *, shares_port: bool = False
    ) -> None:
        """`shares_port`: other processes of the node listen on it too."""
        self.name = settings.name
        self._shares_port = shares_port
        self.settings = settings
        self.engine = engine
        self.trusted = [ipaddress.ip_network(each) for each in settings.proxy_from]
        """Proxies whose word about the client's address counts."""
        self.limiter: ConnectionLimiter
        self.waiting: set[SocketLink] = set()
        """Links of clients that are not let in yet."""
        self.throttle = throttle_of(
            settings.publishes_max_per_s, settings.bytes_max_per_s, engine.now_ms()
        )
        """What all its clients together may send; None: there is no limit."""
        self._throttled = False
        self.connect_rate = Bucket(settings.connects_max_per_s, engine.now_ms())
        self._acceptor: Acceptor | None = None
        self._make_link = self._link_maker()
        self._strangers = 0
        self._link_bytes = 0
        self._tls: WatchedFiles[ssl.SSLContext] | None = None
        self._ticks = 0

    async def start(self) -> None:
        """Raises ConfigError (TLS files) and StartupError (address taken)."""
        settings = self.settings
        if settings.tls_cert:
            self._tls = self._tls_of(settings)
        await self.engine.open()
        loop = self.engine.loop
        self._link_bytes = link_bytes(loop, tls=self._tls is not None)
        self.limiter = ConnectionLimiter(self._limits())
        try:
            if settings.transport == "unix":
                sockets = [unix_socket(settings.path, settings.unix_mode)]
            else:
                sockets = await listening_sockets(
                    loop, settings.host, settings.port, shared=self._shares_port
                )
        except OSError as error:
            await self.engine.close()
            where = settings.path if settings.transport == "unix" else self._host_port()
            raise StartupError(f"{self.name}: cannot listen on {where}: {error}") from error
        timeout_s = self.engine.settings.connect_timeout_ms / 1000
        self._acceptor = Acceptor(loop, sockets, self, timeout_s)
        self.engine.on_tick.append(self._renew)

    def _tls_of(self, settings: ListenerSettings) -> WatchedFiles[ssl.SSLContext]:
        """For connections to come. Raises ConfigError."""
        return watched_context(
            f"plugins.mqtt: listener {settings.name}", settings.tls_cert, settings.tls_key,
            settings.tls_ca, settings.client_certificate,
        )  # fmt: skip

    def _host_port(self) -> str:
        return f"{self.settings.host}:{self.settings.port}"

    def _limits(self) -> ConnectionLimits:
        shared, most = self.engine.settings, self.settings.connections_max
        memory = shared.unauthenticated_memory_max_bytes // 2
        # At most half of the connections: strangers who do not log in must leave room for clients.
        waiting = min(shared.unauthenticated_max, max(1, most // 2), memory // self._link_bytes)
        return ConnectionLimits(
            most,
            shared.peer_connections_max or None,
            waiting,
            shared.unauthenticated_peer_max or None,
            memory,
        )

    def connections(self) -> int:
        """Clients that are connected, those included that are not let in yet."""
        return self.limiter.connections

    def reconfigure(self, settings: MqttSettings) -> Callable[[], None]:
        """See `Reconfigurable`. The first listener brings the engine's part of it."""
        own = {each.name: each for each in settings.all_listeners()}[self.name]
        tls = self._tls
        if tls is not None and own != self.settings:
            tls = self._tls_of(own)

        def apply() -> None:
            if self._is_first():
                _use(self.engine, settings)
            self.settings, self._tls = own, tls
            self.limiter.limits = self._limits()

        return apply

    def _is_first(self) -> bool:
        return self.name == self.engine.settings.all_listeners()[0].name

    # -- what the acceptor asks

    @property
    def full(self) -> bool:
        """Whether no more can wait to be let in."""
        limiter = self.limiter
        most = limiter.limits.unauthenticated_max
        return most is not None and limiter.unauthenticated >= most

    def admit(self, host: str) -> AdmittedConnection | None:
        """None: there are too many, they come too fast, or it is not the proxy. Who is behind a
        proxy is counted under no address until the PROXY header is there."""
        hub = self.engine.hub
        if self.trusted:
            if not any(ipaddress.ip_address(host) in each for each in self.trusted):
                return None
            # A name of its own for each: else all clients would count against the limit of one
            # peer.
            self._strangers += 1
            host = f"behind a proxy, {self._strangers}"
        try:
            if self.connect_rate.take(self.engine.now_ms()):
                return self.limiter.admit(host)
        except ConnectionRefused:
            pass
        hub.counters.connections_refused += 1
        return None

    def link(self, admitted: AdmittedConnection) -> asyncio.Protocol:
        """A link for an admitted connection, over TCP, a unix socket or WebSocket."""
        return cast(asyncio.Protocol, self._make_link(admitted))

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of this moment, which follows changed files; None: without TLS."""
        return self._tls.value if self._tls else None

    def _link_maker(self) -> Callable[[AdmittedConnection], SocketLink]:
        if self.settings.transport == "websocket":
            from lakemq.plugins.mqtt.server.websocket import WebSocketLink

            return lambda admitted: WebSocketLink(self, admitted)
        return lambda admitted: SocketLink(self, admitted)

    def hold_back(self, throttle: Throttle) -> None:
        """Its clients have sent more than their share: read from none that sends on, for a time."""
        if not self._throttled:
            self._throttled = True
            self.engine.later(throttle.wait_ms / 1000, self._unthrottle)

    def _unthrottle(self) -> None:
        self._throttled = False
        if self.throttle is not None:
            self.throttle.wait_ms = 0
        self.engine.resume_reading()

    def _renew(self) -> None:
        self._ticks += 1
        if self._tls is not None and self._ticks % _CERTIFICATE_CHECK_TICKS == 0:
            self._tls.refresh()

    def admin_routes(self) -> Sequence[AnyRoute]:
        """The first listener speaks for all."""
        if not self._is_first():
            return ()
        # Models and routes come when the admin API is asked for something.
        from lakemq.plugins.mqtt.ops.admin import MqttAdmin

        return MqttAdmin(self.engine).routes()

    def addresses(self) -> Sequence[str]:
        """`host:port` or `unix:path` of each socket; empty before `start`."""
        if self._acceptor is None:
            return []
        return [_address(socket.getsockname()) for socket in self._acceptor.sockets]

    async def stop(self) -> None:
        """Accept no more, close the engine if it was the last listener, and remove a unix
        socket."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is None:
            return
        acceptor.close()
        self.engine.on_tick.remove(self._renew)
        await self.engine.close()
        if self.settings.transport == "unix":
            with suppress(FileNotFoundError):
                os.unlink(self.settings.path)


def _address(name: str | tuple[str, int]) -> str:
    if isinstance(name, str):
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def _use(engine: MqttEngine, settings: MqttSettings) -> None:
    """Put what is `Reloadable` in them into use; bounds of one connection are for new ones."""
    engine.settings, hub = settings, engine.hub
    engine.draining.limit(settings.limits())
    hub.bans.rules = settings.ban_rules()
    hub.delivery.slow.limit(settings.slow_ms, settings.slow_count_max, settings.slow_expiry_ms)
    hub.delays.limits = settings.delay_limits()
    hub.retained.count_max = settings.retained_count_max
    hub.retained.bytes_max = settings.retained_max_bytes
