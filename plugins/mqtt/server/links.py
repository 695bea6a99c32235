"""One socket and its MQTT connection: bytes in, bytes out. Edge."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network
from typing import Final, Protocol, cast

from lakemq.broker_core.api.limits.connection_limits import (
    AdmittedConnection,
    ConnectionLimiter,
    ConnectionRefused,
)
from lakemq.plugins.mqtt.config import ListenerSettings
from lakemq.plugins.mqtt.server.engine import CLOSE_LINGER_S, MqttEngine
from lakemq.plugins.mqtt.server.tls import alternative_names, subject_of
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.protocol import ServerProtocol
from lakemq.plugins.mqtt.session.rates import Throttle
from lakemq.plugins.mqtt.state.traffic import Arrival
from lakemq.plugins.mqtt.wire.proxy import ProxyError, parse_proxy_header

UNKNOWN_HOST: Final = "unknown"
"""Stands for an unknown address of a client; it is not a loopback address."""
LINGER_S: Final = 1.0
"""How long a client may go on sending while it reads why its connection ends."""
LINGER_MAX_BYTES: Final = 4 * 1024 * 1024
"""How much of that is read, and thrown away."""
_USER_PROPERTY_BYTES: Final = 320
"""Of a parsed user property, beyond its bytes."""
SENT_BEHIND_CONNECT_MAX_BYTES: Final = 512 * 1024
"""What a client may send before it is let in, beyond `connect_max_bytes`: its reading is paused
while it is found out who it is, but some is read until then."""
UNAUTHENTICATED_WRITE_MAX_BYTES: Final = 64 * 1024
"""What may wait for the socket of a client that is not let in yet."""


class LinkListener(Protocol):
    """The listener that a link's client came to, as the link needs it."""

    name: str
    settings: ListenerSettings
    engine: MqttEngine
    trusted: list[IPv4Network | IPv6Network]
    """Proxies whose word about the client's address counts."""
    limiter: ConnectionLimiter
    waiting: set[SocketLink]
    """Links of clients that are not let in yet."""
    throttle: Throttle | None
    """What all its clients together may send; None: there is no limit."""

    def hold_back(self, throttle: Throttle) -> None:
        """Its clients have sent more than their share."""


class SocketLink:
    """One socket and its connection: an `asyncio.Protocol`, by its methods alone, for what inherits
    from interpreted classes is slow where this module is compiled."""

    __slots__ = (
        "_checked",
        "_full",
        "_lingering",
        "_paused",
        "_prelude",
        "_received_bytes",
        "admitted",
        "connection",
        "engine",
        "listener",
        "transport",
    )

    connection: Connection
    transport: asyncio.Transport

    def __init__(self, listener: LinkListener, admitted: AdmittedConnection) -> None:
        self.listener = listener
        self.engine = listener.engine
        self.admitted = admitted
        self._checked = False
        """Whether the client is let in and nothing but MQTT is awaited from it."""
        self._prelude: bytes | None = None
        """Bytes of a PROXY header that is not complete; None: none is awaited."""
        self._received_bytes = 0
        """Before the client was let in; all of them may still be held."""
        self._full = False
        """Whether the socket takes no more for now."""
        self._paused = False
        """Whether the socket is not read for now."""
        self._lingering: int | None = None
        """Bytes that are still thrown away, once the connection is over."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the connection of a new socket; asyncio calls it after the TLS handshake."""
        engine, listener = self.engine, self.listener
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) else "unix"
        certificate, arrival = transport.get_extra_info("peercert"), Arrival(listener.name)
        if certificate is not None:
            names = alternative_names(certificate)
            arrival = Arrival(listener.name, subject_of(certificate), names)
        self.connection = ServerProtocol(engine.hub, host, engine.now_ms(), arrival)
        self.connection.on_admit = self._let_in
        engine.links[self.connection] = self
        listener.waiting.add(self)
        self.transport.set_write_buffer_limits(engine.settings.write_buffer_max_bytes)
        if listener.trusted:
            self._prelude = b""

    # -- before the client is let in

    def _let_in(self) -> None:
        self.listener.waiting.discard(self)
        self.admitted.authenticate()
        self._checked = self._prelude is None and self._lingering is None
        self.read_on()

    @property
    def held_bytes(self) -> int:
        """Memory that what it sent takes while it is not let in, at most."""
        connect = self.connection.connect
        will = connect.will if connect is not None else None
        properties = len(will.properties.user_properties) if will is not None else 0
        return self._received_bytes * 5 // 4 + _USER_PROPERTY_BYTES * properties

    def _hold(self, size: int = 0) -> bool:
        """Count bytes of a client that is not let in. Where the listener holds too many of them,
        the client that sent most is dropped. False: that was this one."""
        self._received_bytes += size
        settings, waits = self.engine.settings, self.transport.get_write_buffer_size()
        most = settings.connect_max_bytes + SENT_BEHIND_CONNECT_MAX_BYTES
        if self._received_bytes > most or waits > UNAUTHENTICATED_WRITE_MAX_BYTES:
            self.refuse()
            return False
        while True:
            try:
                self.admitted.hold(self.held_bytes)
            except ConnectionRefused:
                largest = max(self.listener.waiting, key=lambda one: one.held_bytes)
                largest.refuse()
                if largest is self:
                    return False
            else:
                return True

    def refuse(self) -> None:
        """Drop a client that is not let in, with all that is held of it."""
        self.engine.hub.counters.connections_refused += 1
        self.listener.waiting.discard(self)
        self.admitted.close()
        self.connection.decoder.drop()
        self.abort()

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
        self.connection.peer_host = header.client_host or UNKNOWN_HOST
        if header.client_host is not None and not self._count_under(header.client_host):
            return b""
        return data[header.size_bytes :]

    def _count_under(self, host: str) -> bool:
        """Count the connection under the client's own address. False: that has too many."""
        self.admitted.close()
        try:
            self.admitted = self.listener.limiter.admit(host)
            self.admitted.hold(self.held_bytes)
        except ConnectionRefused:
            self.refuse()
            return False
        return True

    # -- bytes in

    def data_received(self, data: bytes) -> None:
        """Take bytes of the socket: of a PROXY header, of MQTT, or to be thrown away."""
        if self._checked:
            self.received(data)
            return
        if self._lingering is not None:
            self._throw_away(data)
            return
        if not self.admitted.authenticated and not self._hold(len(data)):
            return
        if self._prelude is not None:
            rest = self._read_proxy_header(self._prelude + data)
            if not rest:
                return
            data = rest
        self.received(data)

    def take(self, data: bytes) -> None:
        """MQTT bytes from the client."""
        engine = self.engine
        if not self._checked:
            self._take_unchecked(data)
        elif self.listener.throttle is None:
            self.connection.receive(data, engine.now_ms())
        else:
            self._receive(data, self.listener.throttle)
        if self.overloaded:
            self.pause_if_overloaded()
        if not engine.turn_due:
            engine.after()

    def received(self, data: bytes) -> None:
        """Bytes of the transport inside TCP or TLS."""
        self.take(data)

    def _take_unchecked(self, data: bytes) -> None:
        """Of a client that is not let in, or not any more."""
        connection, throttle = self.connection, self.listener.throttle
        asked_before = connection.credentials is not None
        if throttle is None:
            connection.receive(data, self.engine.now_ms())
        else:
            self._receive(data, throttle)
        if connection.credentials is not None and not asked_before:
            self.engine.ask(connection)
        if not self.admitted.authenticated:
            self._hold()

    def _receive(self, data: bytes, throttle: Throttle) -> None:
        """Have them handled, and counted against what all clients of the listener may send."""
        now_ms = self.engine.now_ms()
        counters = self.engine.hub.counters
        before = counters.publishes_received
        self.connection.receive(data, now_ms)
        throttle.pay(counters.publishes_received - before, len(data), now_ms)
        if throttle.wait_ms:
            self.listener.hold_back(throttle)

    def pause_if_overloaded(self) -> None:
        """Read no more for now, where there is a reason. While it is found out who the client is,
        the answer ends that (`read_on`); the others are looked at together (`engine.paused`)."""
        engine, connection = self.engine, self.connection
        if self._paused or self.transport.is_closing() or not self.overloaded:
            return
        self._paused = True
        self.transport.pause_reading()
        if connection.authenticating:
            return
        engine.paused[self] = None
        if connection.throttle is not None and connection.throttle.wait_ms:
            engine.later(connection.throttle.wait_ms / 1000, self._unthrottle)

    def pause(self) -> None:
        """Read no more, whatever the client sends, while `MqttEngine.reads` is False."""
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """It is known who the client is, or its answer is awaited."""
        if self._paused and not self.connection.authenticating:
            self.resume_reading()
            self.pause_if_overloaded()

    @property
    def overloaded(self) -> bool:
        """Whether nothing more should be read for now."""
        throttle, connection = self.listener.throttle, self.connection
        return (
            connection.overloaded
            or (throttle is not None and throttle.wait_ms > 0)
            or (connection.blocked and self._answers_pile_up())
        )

    def _answers_pile_up(self) -> bool:
        """Whether the client sends on and reads no answers. Deliveries stop well before."""
        most = 2 * self.engine.settings.write_buffer_max_bytes
        return self.transport.get_write_buffer_size() > most

    def _unthrottle(self) -> None:
        if self.connection.throttle is not None:
            self.connection.throttle.wait_ms = 0
        self.engine.resume_reading()

    def resume_reading(self) -> None:
        """Read from the socket again, if that was paused."""
        self.engine.paused.pop(self, None)
        if self._paused and self.engine.reads and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    # -- bytes out

    def pause_writing(self) -> None:
        """The write buffer is full: the connection is blocked until it is empty enough."""
        self._full = True
        self.connection.blocked = True
        self.connection.traffic.blocked_ms = self.engine.now_ms()

    def resume_writing(self) -> None:
        """The write buffer takes bytes again: send what waited for that."""
        self._full = False
        self.connection.unblocked(self.engine.now_ms())
        self.engine.resume_reading()
        self.engine.after()

    def flush(self) -> None:
        """Write what the connection has to say, in one piece; then close if it is over."""
        connection = self.connection
        out = connection.out
        if out:
            # One write for all packets of a turn: as a rule, one system call.
            data = out[0] if len(out) == 1 else b"".join(out)
            connection.traffic.packets_sent += len(out)
            connection.traffic.bytes_sent += len(data)
            out.clear()
            self.engine.hub.counters.bytes_sent += len(data)
            self.send(data)
            if connection.large_bytes:
                connection.written(self.engine.now_ms(), full=self._full)
        if connection.closing is not None and not self.transport.is_closing():
            self.finish()

    def send(self, data: bytes) -> None:
        """Give bytes to the socket, whose buffer takes what it cannot send now."""
        self.transport.write(data)

    # -- the end

    def eof_received(self) -> None:
        """The client sends nothing more: the transport closes the socket."""

    def finish(self) -> None:
        """Close once everything is written."""
        if self.connection.left:
            self.close()
        else:
            self.linger()

    def close(self) -> None:
        """Close once everything is written, or after `CLOSE_LINGER_S`."""
        # A client that does not read would keep its socket, and the bytes for it, for ever.
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.engine.later(CLOSE_LINGER_S, self.abort)

    @property
    def lingering(self) -> bool:
        """Whether the connection is over and what still comes is thrown away."""
        return self._lingering is not None

    def linger(self, *, half_close: bool = True) -> None:
        """Say that nothing more comes, and let the client read why: while it still sends, its
        system would throw away what it has not read, were the socket closed here."""
        if self._lingering is not None:
            return
        self._lingering = LINGER_MAX_BYTES
        self._checked = False
        self.connection.lost(self.engine.now_ms())
        self.resume_reading()
        if half_close and self.transport.can_write_eof():
            with suppress(OSError):  # the client is gone already
                self.transport.write_eof()
        self.engine.later(LINGER_S, self._linger_no_more)
        self.engine.after()

    def _throw_away(self, data: bytes) -> None:
        assert self._lingering is not None
        self._lingering -= len(data)
        if self._lingering < 0:
            self.close()

    def _linger_no_more(self) -> None:
        if not self.transport.is_closing():
            self.close()

    def abort(self) -> None:
        """Close the socket at once; what was not sent is lost."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, from whichever side: the connection ends, with its will unless it
        had ended."""
        engine, connection = self.engine, self.connection
        self.listener.waiting.discard(self)
        self.admitted.close()
        connection.lost(engine.now_ms())
        connection.out.clear()
        engine.forget(connection)
        engine.paused.pop(self, None)
        engine.after()
