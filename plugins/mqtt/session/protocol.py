"""What a connection makes of the packets that come: one table of handlers by state.

Source: MQTT 5.0 chapters 3 and 4 and MQTT 3.1.1 chapters 3 and 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from lakemq.broker_core.api.types import Principal
from lakemq.plugins.mqtt.routing.rights import Charge
from lakemq.plugins.mqtt.session import (
    acknowledging,
    authenticating,
    connecting,
    publishing,
    subscribing,
)
from lakemq.plugins.mqtt.session.connection import Connection
from lakemq.plugins.mqtt.session.rates import Throttle
from lakemq.plugins.mqtt.state.appends import Outcome
from lakemq.plugins.mqtt.state.questions import AuthorizationPending
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.wire.encoding import PINGRESP
from lakemq.plugins.mqtt.wire.messages import Place
from lakemq.plugins.mqtt.wire.packets import (
    Acknowledgement,
    AcknowledgementRun,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Ping,
    Publish,
    PublishRun,
    StoredRun,
    Subscribe,
    Unsubscribe,
)
from lakemq.plugins.mqtt.wire.reasons import MqttError, ProtocolError

_WAIT_MAX_MS: Final = 30_000
"""Longest pause of a client without keep-alive that is over its quota (ms)."""


class ServerProtocol(Connection):
    """One connection of a client, as the server drives it: bytes and times in, effects out."""

    __slots__ = ()

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take bytes from the socket."""
        if self.state is State.CLOSED:
            return
        counters, size = self.hub.counters, len(data)
        counters.bytes_received += size
        self.traffic.bytes_received += size
        if self.keep_alive_ms:
            self.silent_until_ms = now_ms + self.keep_alive_ms
        if now_ms >= self.routes_until_ms and self.state is State.CONNECTED and not self.asking:
            publishing.forget_routes(self, now_ms)
        before = counters.publishes_received
        # Bytes are held undecoded, one copy of them: [MQTT-3.1.4-6] forbids processing them if the
        # client is refused.
        if self.state is State.AUTHENTICATING:
            self.decoder.hold(data)
            return
        packets = self.decoder.feed(data)
        self.traffic.packets_received += len(packets)
        if self.pending:
            self.pending += packets
        else:
            self._handle(packets, now_ms)
        charge = self.hub.rights.charge
        if charge is not None or self.throttle is not None:
            self._pay(counters.publishes_received - before, size, charge, now_ms)
        if self.decoder.error is not None:
            self._fail_if_malformed(now_ms)

    def _pay(self, publishes: int, size: int, charge: Charge | None, now_ms: int) -> None:
        """Count what came against the client's limits."""
        if self.throttle is not None:
            self.throttle.pay(publishes, size, now_ms)
        if charge is not None and self.state is State.CONNECTED:
            wait_ms = charge(self.principal, bytes_in=size, records_in=publishes)
            if wait_ms:
                self._wait(wait_ms, now_ms)

    def _decode(self, data: bytes, now_ms: int) -> None:
        packets = self.decoder.feed(data)
        self.traffic.packets_received += len(packets)
        if self.pending:
            self.pending += packets
        else:
            self._handle(packets, now_ms)

    def _fail_if_malformed(self, now_ms: int) -> None:
        """Behind what came in good order, and not before all of that is handled."""
        if self.decoder.error is not None and not self.asking:
            self._fail(self.decoder.error, now_ms)

    def _wait(self, wait_ms: int, now_ms: int) -> None:
        """The principal is over its quota: read nothing for `wait_ms`, but no longer than half of
        its client's keep-alive interval, which may wait for the answer to a PINGREQ."""
        if self.throttle is None:
            self.throttle = Throttle(0, 0, now_ms)
        bearable_ms = self.keep_alive_ms // 3 or _WAIT_MAX_MS
        wait_ms = min(wait_ms, bearable_ms)
        self.throttle.wait_ms = max(self.throttle.wait_ms, wait_ms)
        if self.keep_alive_ms:
            # The pause is ours: it is not counted as silence of the client.
            self.silent_until_ms += wait_ms

    def authenticated(self, principal: Principal, now_ms: int) -> None:
        """The answer to `credentials`: let the client in and handle what it sent meanwhile."""
        if self.state is not State.AUTHENTICATING:
            return
        self.credentials = None
        try:
            connecting.welcome(self, self.hub.same_principal(principal), now_ms)
            self.hub.rights.note(self, principal)
        except MqttError as error:
            self._fail(error, now_ms)

    def proceed(self, now_ms: int) -> None:
        """The client may be heard again: handle what it sent meanwhile."""
        # One packet at a time: each may close the connection, or ask again.
        while self.pending and not self.asking:
            self._handle((self.pending.popleft(),), now_ms)
        decoder = self.decoder
        if decoder.held_bytes and decoder.error is None and self.state is not State.CLOSED:
            self._decode(b"", now_ms)
        self._fail_if_malformed(now_ms)

    def _answered(self, now_ms: int) -> None:
        """What was asked is known: handle again what it was asked for."""
        self.asking = False
        if self.state is not State.CLOSED:
            self.proceed(now_ms)

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """What became of a publish of this connection that went to storage."""
        inflow = self.inflow
        inflow.appends -= 1
        inflow.appends_bytes -= size_bytes
        if not qos or inflow.take((packet_id,)):
            publishing.settled(self, packet_id, qos, outcome, now_ms)
            if inflow.early:
                inflow.go_on()
        else:
            settle = partial(publishing.settled, self, packet_id, qos, outcome, now_ms)
            inflow.in_turn(packet_id, settle)

    def on_received(
        self, packet_ids: Sequence[int], size_bytes: int, first: Place, now_ms: int
    ) -> None:
        """QoS 2 publishes of this connection are stored, from `first` on."""
        inflow = self.inflow
        inflow.appends -= len(packet_ids)
        inflow.appends_bytes -= size_bytes
        if inflow.take(packet_ids):
            publishing.received(self, packet_ids, first, now_ms)
            if inflow.early:
                inflow.go_on()
            return
        for offset, packet_id in enumerate(packet_ids, first.offset):
            place = Place(first.topic, first.partition, offset)
            settle = partial(publishing.settled, self, packet_id, 2, place, now_ms)
            inflow.in_turn(packet_id, settle)

    def _handle(self, packets: Sequence[Packet], now_ms: int) -> None:
        for place, packet in enumerate(packets):
            handler = _HANDLERS[self.state].get(type(packet), _unexpected)
            try:
                handler(self, packet, now_ms)
            except AuthorizationPending as unanswered:
                self.asking = True
                # This packet and all behind it come again, in order, once the answer is there
                # [MQTT-4.6.0-2].
                if self.pending is None:
                    self.pending = deque()
                self.pending.extendleft(reversed(packets[place + 1 :]))
                self.pending.extendleft(self._again(packet))
                self.hub.outbox.questions.append((unanswered.question, self._answered))
                return
            # [MQTT-4.13.1-1]: what is behind the wrong packet is not handled.
            except MqttError as error:
                self._fail(error, now_ms)
                return

    def _again(self, packet: Packet) -> Sequence[Packet]:
        """What is to be handled again, the last first: of a run each publish by itself, for every
        one may ask."""
        if not isinstance(packet, PublishRun):
            return (packet,)
        self.traffic.packets_received += len(packet.names) - 1
        return list(packet.one_by_one())[::-1]

    def _fail(self, error: MqttError, now_ms: int) -> None:
        if self.state is State.CLOSED:
            return
        self.hub.counters.packets_invalid += 1
        self.close(error.reason, str(error), now_ms)


def _unexpected(connection: Connection, packet: Packet, now_ms: int) -> None:
    raise ProtocolError(
        f"unexpected {type(packet).__name__.upper()} in state {connection.state.name}"
    )


def _ping(connection: Connection, packet: Ping, now_ms: int) -> None:
    if packet.type is not PacketType.PINGREQ:
        raise ProtocolError("PINGRESP may not come from a client")
    connection.write(PINGRESP)


def _disconnect(connection: Connection, packet: Disconnect, now_ms: int) -> None:
    """The client says goodbye [MQTT-3.14.4-3]."""
    session = connection.session
    expiry_s = packet.properties.session_expiry_s
    if session is not None and expiry_s is not None:
        if expiry_s and not session.expiry_s:  # 3.14.2.2.2
            raise ProtocolError("session expiry cannot be set at DISCONNECT after 0 at CONNECT")
        connection.hub.session_table.set_expiry(session, expiry_s)
    connection.closing = "the client disconnected"
    connection.left = True
    if not connection.out:
        connection.hub.outbox.writes.append(connection)
    # 0x04 asks for the will, and so does every failure (3.14.2.1); 0x00 alone discards it.
    connection.leave(now_ms, with_will=packet.reason != 0)


def _ignore(connection: Connection, packet: Packet, now_ms: int) -> None:
    """Packets behind one that ended the connection."""


_Handler = Callable[[Connection, Any, int], None]
_WHEN_CONNECTED: Final[dict[type, _Handler]] = {
    Publish: publishing.publish,
    PublishRun: publishing.pass_on_run,
    StoredRun: publishing.publish_run,
    Acknowledgement: acknowledging.acknowledgement,
    AcknowledgementRun: acknowledging.acknowledgements,
    Subscribe: subscribing.subscribe,
    Unsubscribe: subscribing.unsubscribe,
    Ping: _ping,
    Disconnect: _disconnect,
    Auth: authenticating.auth,
}
_HANDLERS: Final[dict[State, dict[type, _Handler]]] = {
    State.NEW: {Connect: connecting.connect},
    State.AUTHENTICATING: {},
    State.CONNECTED: _WHEN_CONNECTED,
    State.CHALLENGED: {Auth: authenticating.auth, Disconnect: _disconnect},
    State.CLOSED: dict.fromkeys(_WHEN_CONNECTED, _ignore),
}
