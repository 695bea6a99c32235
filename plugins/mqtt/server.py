"""The sockets of the MQTT plugin: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from broker_core.api.errors import StartupError
from broker_core.api.ports import AdminRoute
from plugins.mqtt.admin import MqttAdmin
from plugins.mqtt.config import ListenerSettings
from plugins.mqtt.engine import GOODBYE_S, MqttEngine
from plugins.mqtt.protocol import Arrival, Connection
from plugins.mqtt.proxy import ProxyError, parse_proxy_header
from plugins.mqtt.rates import Bucket, Throttle, throttle_of
from plugins.mqtt.tls import Certificates, alternative_names, subject_of

BACKLOG: Final = 4096
_CERTIFICATE_CHECK_TICKS: Final = 10


class MqttListener:
    """One address that clients connect to."""

    def __init__(self, settings: ListenerSettings, engine: MqttEngine) -> None:
        self.name = settings.name
        self.settings = settings
        self.engine = engine
        self.trusted = [ipaddress.ip_network(each) for each in settings.proxy_from]
        """Proxies whose word about the client's address counts."""
        self.links = 0
        self.throttle = throttle_of(
            settings.publishes_per_s_max, settings.bytes_per_s_max, engine.now_ms()
        )
        """What all its clients together may send; None: there is no limit."""
        self._throttled = False
        self.connect_rate = Bucket(settings.connects_per_s_max, engine.now_ms())
        self._server: asyncio.Server | None = None
        self._certificates: Certificates | None = None
        self._ticks = 0

    async def start(self) -> None:
        """Raises ConfigError (TLS files) and StartupError (address taken)."""
        settings = self.settings
        if settings.certificate:
            self._certificates = Certificates(
                settings.certificate,
                settings.key,
                settings.client_ca,
                settings.client_certificate,
            )
        await self.engine.open()
        try:
            self._server = await self._bind()
        except OSError as error:
            await self.engine.close()
            where = settings.path if settings.transport == "unix" else self._host_port()
            raise StartupError(f"{self.name}: cannot listen on {where}: {error}") from error
        self.engine.on_tick.append(self._renew)

    def _host_port(self) -> str:
        return f"{self.settings.host}:{self.settings.port}"

    async def _bind(self) -> asyncio.Server:
        loop, settings = self.engine.loop, self.settings
        context = self._certificates.context if self._certificates else None
        link = self._link_maker()
        if settings.transport == "unix":
            server = await loop.create_unix_server(link, settings.path, backlog=BACKLOG)
            os.chmod(settings.path, settings.unix_mode)
            return server
        return await loop.create_server(
            link, settings.host, settings.port, backlog=BACKLOG, ssl=context
        )

    def _link_maker(self) -> Callable[[], SocketLink]:
        if self.settings.transport == "websocket":
            from plugins.mqtt.websocket import WebSocketLink

            return lambda: WebSocketLink(self)
        return lambda: SocketLink(self)

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
        if self._certificates is not None and self._ticks % _CERTIFICATE_CHECK_TICKS == 0:
            self._certificates.renew()

    def admin_routes(self) -> Sequence[AdminRoute]:
        """The first listener speaks for all."""
        first = self.engine.settings.all_listeners()[0]
        return MqttAdmin(self.engine).routes() if self.settings.name == first.name else ()

    def addresses(self) -> Sequence[str]:
        if self._server is None:
            return []
        names = [socket.getsockname() for socket in self._server.sockets]
        return [_address(name) for name in names]

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self.engine.on_tick.remove(self._renew)
        await self.engine.close()
        await server.wait_closed()
        if self.settings.transport == "unix":
            with suppress(FileNotFoundError):  # from Python 3.13 on asyncio has done it
                os.unlink(self.settings.path)


def _address(name: str | tuple[str, int]) -> str:
    if isinstance(name, str):
        return f"unix:{name}"
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


class SocketLink(asyncio.Protocol):
    """One socket and its connection."""

    __slots__ = ("_prelude", "connection", "engine", "listener", "transport")

    connection: Connection
    transport: asyncio.Transport

    def __init__(self, listener: MqttListener) -> None:
        self.listener = listener
        self.engine = listener.engine
        self._prelude: bytes | None = None
        """Bytes of a PROXY header that is not complete; None: none is awaited."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        engine, listener = self.engine, self.listener
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) else "unix"
        certificate = transport.get_extra_info("peercert")
        self.connection = Connection(
            engine.hub,
            host,
            engine.now_ms(),
            Arrival(listener.name, subject_of(certificate), alternative_names(certificate)),
        )
        engine.links[self.connection] = self
        listener.links += 1
        self.transport.set_write_buffer_limits(engine.settings.write_buffer_bytes_max)
        if listener.trusted:
            self._prelude = b""
            if not any(ipaddress.ip_address(host) in each for each in listener.trusted):
                self.abort()
        too_fast = not listener.connect_rate.take(engine.now_ms())
        if too_fast or listener.links > listener.settings.connections_max:
            engine.hub.counters.connections_refused += 1
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._prelude is not None:
            rest = self._read_proxy_header(self._prelude + data)
            if not rest:
                return
            data = rest
        self.received(data)

    def _read_proxy_header(self, data: bytes) -> bytes:
        """What follows the PROXY header; empty while it is not complete, or is wrong."""
        try:
            header = parse_proxy_header(data)
        except ProxyError:
            self.engine.hub.counters.packets_invalid += 1
            self.abort()
            return b""
        if header is None:
            self._prelude = data
            return b""
        self._prelude = None
        if header.client_host is not None:
            self.connection.peer_host = header.client_host
        return data[header.size_bytes :]

    def received(self, data: bytes) -> None:
        """Bytes of the transport inside TCP or TLS."""
        self.take(data)

    def take(self, data: bytes) -> None:
        """MQTT bytes from the client."""
        engine, connection = self.engine, self.connection
        asked_before = connection.credentials is not None
        throttle, counters = self.listener.throttle, engine.hub.counters
        before, now_ms = counters.publishes_received, engine.now_ms()
        connection.receive(data, now_ms)
        if throttle is not None:
            throttle.pay(counters.publishes_received - before, len(data), now_ms)
            if throttle.wait_ms:
                self.listener.hold_back(throttle)
        if connection.credentials is not None and not asked_before:
            engine.ask(connection)
        if self.overloaded and self not in engine.paused:
            self.transport.pause_reading()
            engine.paused.add(self)
            if connection.throttle is not None and connection.throttle.wait_ms:
                engine.later(connection.throttle.wait_ms / 1000, self._unthrottle)
        engine.after()

    @property
    def overloaded(self) -> bool:
        """Whether nothing more should be read for now."""
        throttle = self.listener.throttle
        return self.connection.overloaded or (throttle is not None and throttle.wait_ms > 0)

    def _unthrottle(self) -> None:
        if self.connection.throttle is not None:
            self.connection.throttle.wait_ms = 0
        self.engine.resume_reading()

    def resume_reading(self) -> None:
        self.engine.paused.discard(self)
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.connection.blocked = True
        self.connection.traffic.blocked_ms = self.engine.now_ms()

    def resume_writing(self) -> None:
        self.connection.unblocked(self.engine.now_ms())
        self.engine.after()

    def connection_lost(self, exc: Exception | None) -> None:
        engine, connection = self.engine, self.connection
        self.listener.links -= 1
        connection.lost(engine.now_ms())
        connection.out.clear()
        engine.links.pop(connection, None)
        engine.paused.discard(self)
        engine.after()

    def flush(self) -> None:
        """Write what the connection has to say, in one piece; then close if it is over."""
        connection = self.connection
        out = connection.out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            connection.traffic.packets_sent += len(out)
            connection.traffic.bytes_sent += len(data)
            out.clear()
            self.engine.hub.counters.bytes_sent += len(data)
            self.send(data)
        if connection.closing is not None and not self.transport.is_closing():
            self.finish()
            if self.transport.get_write_buffer_size():
                self.engine.later(GOODBYE_S, self.abort)

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def finish(self) -> None:
        """Close once everything is written."""
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()
