"""The state of one connection, and what its handlers say to the client.

Bytes to write are put into `out`, everything else that is to be done into `hub.outbox`. Nothing
here touches a socket or decides about packets: `ServerProtocol` does the latter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from lakemq.broker_core.api.types import ANONYMOUS, AccessContext, Credentials, Principal
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.session.progress import Enhanced, Owed, Progress, Route
from lakemq.plugins.mqtt.session.rates import throttle_of
from lakemq.plugins.mqtt.state.appends import Outcome
from lakemq.plugins.mqtt.state.peer import SMALL_MAX_BYTES
from lakemq.plugins.mqtt.state.sessions import Session
from lakemq.plugins.mqtt.state.states import State
from lakemq.plugins.mqtt.state.traffic import NOTHING_CAME, Arrival, Traffic
from lakemq.plugins.mqtt.wire.aliases import SentAliases
from lakemq.plugins.mqtt.wire.codec import Decoder
from lakemq.plugins.mqtt.wire.encoding import PUBACK, encode, shortened
from lakemq.plugins.mqtt.wire.messages import Message, Place, Wire
from lakemq.plugins.mqtt.wire.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Properties,
)
from lakemq.plugins.mqtt.wire.reasons import (
    Reason,
    connack_reason,
    disconnect_reason,
    return_code,
)

OUT_MAX_BYTES: Final = 4 * 1024 * 1024
"""Most bytes in large pieces that are queued for one client; with more, it counts as slow until its
socket has them."""
_UNBOUNDED_BYTES: Final = 1 << 30
"""More than any packet has."""


BEFORE_CONNACK: Final = (State.NEW, State.AUTHENTICATING, State.CHALLENGED)
_NOWHERE_SPECIAL: Final = Arrival()


def _nothing() -> None:
    """What `on_admit` does without a callback."""


def _cautious_decoder(hub: Hub) -> Decoder:
    """Before authentication: small packets, and one by one, until `Connection.admit`."""
    limits = hub.limits
    decoder = Decoder(min(limits.connect_max_bytes, limits.packet_max_bytes), hub.names)
    decoder.one_by_one = decoder.runs = True
    return decoder


class Connection:
    """One network connection of a client, as handlers of packets see it."""

    __slots__ = (
        "aliases",
        "arrival",
        "asking",
        "blocked",
        "bridge",
        "choked",
        "client_id",
        "closing",
        "connect",
        "credentials",
        "decoder",
        "enhanced",
        "express",
        "hub",
        "inflow",
        "keep_alive_ms",
        "large_bytes",
        "left",
        "on_admit",
        "out",
        "owed",
        "packet_max_bytes",
        "peer_host",
        "pending",
        "principal",
        "routes",
        "routes_until_ms",
        "sent_aliases",
        "session",
        "silent_until_ms",
        "state",
        "stored",
        "stored_2",
        "subscribing",
        "throttle",
        "traffic",
        "version",
        "wants_reasons",
        "window",
    )

    def __init__(
        self,
        hub: Hub,
        peer_host: str,
        now_ms: int,
        arrival: Arrival = _NOWHERE_SPECIAL,
    ) -> None:
        self.hub = hub
        self.peer_host = peer_host
        self.arrival = arrival
        self.state = State.NEW
        self.decoder = _cautious_decoder(hub)
        self.express: dict[bytes, str | None] = {}
        """Topic names whose plain QoS 0 publishes need no decoding; None: they do."""
        self.decoder.express = self.express
        self.stored: dict[bytes, Route] = {}
        """Topic names whose plain QoS 1 publishes are stored in runs."""
        self.stored_2: dict[bytes, Route] = {}
        """The same of QoS 2."""
        self.decoder.stored, self.decoder.stored_2 = self.stored, self.stored_2
        self.version = V311
        self.bridge = False
        self.credentials: Credentials | None = None
        """Set while an answer to them is awaited (`authenticated` or `refused`)."""
        self.enhanced: Enhanced | None = None
        """None: CONNECT named no authentication method."""
        self.asking = False
        """Whether an authorizer is asked; what the client sends meanwhile is pending."""
        self.subscribing: Progress | None = None
        """A SUBSCRIBE that waits for such an answer."""
        self.connect: Connect | None = None
        self.pending: deque[Packet] | None = None
        """Packets that came before the answer to a question about their client."""
        self.client_id = ""
        self.principal: Principal = ANONYMOUS
        self.session: Session | None = None
        """Set by CONNECT, and kept: what is stored later is still this session's."""
        self.window = hub.delivery.inflight_max
        self.packet_max_bytes = _UNBOUNDED_BYTES
        self.wants_reasons = True
        """MQTT 5, request problem information: reason strings may be sent."""
        self.keep_alive_ms = 0
        self.silent_until_ms = now_ms + hub.limits.connect_timeout_ms
        """When silence has lasted too long."""
        self._begin_outflow()
        self._begin_inflow(now_ms)
        hub.connections[self] = None

    def _begin_outflow(self) -> None:
        self.out: list[bytes] = []
        """Bytes to write, in order."""
        self.large_bytes = 0
        """Bytes of `out` that are in large pieces."""
        self.choked = False
        """Whether `blocked` only until that is handed to the socket."""
        self.owed: dict[str, Owed] = {}
        """Retained messages that are due, by the filter of their subscription."""
        self.closing: str | None = None
        """Why the server shall close the network connection, once `out` is written."""
        self.left = False
        """Whether it was the client that ended the connection, by DISCONNECT."""
        self.on_admit: Callable[[], None] = _nothing
        """Called when the client is let in."""
        self.blocked = False
        """The socket takes no more for now: QoS 0 is dropped, QoS 1 and 2 wait."""

    def _begin_inflow(self, now_ms: int) -> None:
        hub = self.hub
        self.traffic = Traffic()
        self.aliases: dict[int, str] = {}
        """Topic names by the alias that the client set."""
        self.sent_aliases: SentAliases | None = None
        """None: the client takes no topic aliases."""
        self.routes: dict[str, Route] = {}
        self.routes_until_ms = 0
        self.inflow = NOTHING_CAME
        self.throttle = throttle_of(
            hub.limits.publishes_max_per_s, hub.limits.bytes_max_per_s, now_ms
        )

    # -- what the server calls

    def receive(self, data: bytes, now_ms: int) -> None:
        """Take bytes from the socket."""
        raise NotImplementedError

    def authenticated(self, principal: Principal, now_ms: int) -> None:
        """The answer to `credentials`: let the client in and handle what it sent meanwhile."""
        raise NotImplementedError

    def admit(self) -> None:
        """It is known who the client is: take packets of every size, as they come."""
        self.on_admit()
        self.decoder.one_by_one = False
        self.decoder.packet_max_bytes = self.hub.limits.packet_max_bytes

    def proceed(self, now_ms: int) -> None:
        """The client may be heard again: handle what it sent meanwhile."""
        raise NotImplementedError

    def refused(self, reason: Reason, text: str, now_ms: int) -> None:
        """The other answer to `credentials`."""
        self.credentials = None
        self.hub.counters.connections_refused += 1
        self.close(reason, text, now_ms)

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """What became of a publish of this connection that went to storage."""
        raise NotImplementedError

    def on_received(
        self, packet_ids: Sequence[int], size_bytes: int, first: Place, now_ms: int
    ) -> None:
        """QoS 2 publishes of this connection are stored, from `first` on."""
        raise NotImplementedError

    def on_appended(
        self, packet_ids: Sequence[int], size_bytes: int, somewhere: Place, now_ms: int
    ) -> None:
        """QoS 1 publishes of this connection are stored."""
        inflow = self.inflow
        inflow.appends -= len(packet_ids)
        inflow.appends_bytes -= size_bytes
        if inflow.take(packet_ids):
            self._acknowledge(packet_ids)
            if inflow.early:
                inflow.go_on()
        else:
            for packet_id in packet_ids:
                inflow.in_turn(packet_id, partial(self._acknowledge, (packet_id,)))

    def _acknowledge(self, packet_ids: Sequence[int]) -> None:
        count = len(packet_ids)
        self.inflow.qos_1 -= count
        if self.state is not State.CONNECTED:
            return
        if count == 1:
            self.pass_on(PUBACK + packet_ids[0].to_bytes(2, "big"))
            return
        self.write_acks(PUBACK, packet_ids)

    def note_blocked(self, now_ms: int) -> None:
        """Say how long the socket has taken nothing, if that is slow."""
        hub, waited_ms = self.hub, now_ms - self.traffic.blocked_ms
        if waited_ms >= hub.delivery.slow.threshold_ms and self.traffic.blocked_ms:
            hub.delivery.slow.note(self.client_id, "", waited_ms, now_ms)

    def unblocked(self, now_ms: int) -> None:
        """The socket takes bytes again."""
        # A socket that takes bytes again does not open the gate before CONNACK [MQTT-3.2.0-1].
        self.blocked = self.state in BEFORE_CONNACK
        if self.session is not None and self.state is State.CONNECTED:
            self.note_blocked(now_ms)
            self.session.outbound.pump(self, now_ms)
            self.hub.resume_histories(self.session)
            if self.owed:
                self.hub.outbox.retained.append(self)

    def lost(self, now_ms: int) -> None:
        """The network connection is gone."""
        self.leave(now_ms, with_will=True)

    def timed_out(self, now_ms: int) -> None:
        """Nothing came for too long [MQTT-3.1.2-22]."""
        self.hub.counters.keep_alive_timeouts += 1
        self.close(Reason.KEEP_ALIVE_TIMEOUT, "nothing came for too long", now_ms)

    @property
    def ended(self) -> bool:
        """Whether nothing can be said to the client any more."""
        return self.state is State.CLOSED

    @property
    def let_in(self) -> bool:
        """Whether the client has a session."""
        return self.session is not None

    @property
    def authenticating(self) -> bool:
        """Whether it is being found out who the client is."""
        return self.state is State.AUTHENTICATING

    @property
    def overloaded(self) -> bool:
        """Whether the server should read no more from this client for now. A client of version 5
        that does not obey the receive maximum is slowed down so, unless it is disconnected for it;
        it may still release what was received at QoS 2."""
        limits, inflow, throttle = self.hub.limits, self.inflow, self.throttle
        unanswered = len(inflow.order)
        # The receive maximum counts only while unanswered ones exceed it: a client whose QoS 2
        # publishes await PUBREL must be read, or it could not send that.
        return (
            self.state is State.AUTHENTICATING
            or self.asking
            or (throttle is not None and throttle.wait_ms > 0)
            or inflow.appends > limits.appends_inflight_max
            or unanswered > limits.appends_inflight_max
            or inflow.appends_bytes > limits.appends_inflight_max_bytes
            or (
                unanswered > limits.receive_max
                and inflow.qos_1 + len(inflow.qos_2) > limits.receive_max
                and self.version == V5
            )
        )

    # -- what handlers call

    def access_context(self, qos: int, retain: bool | None = None) -> AccessContext:
        """What rules may go by beside who the client is."""
        return AccessContext(
            "mqtt", self.client_id, self.peer_host, self.arrival.listener, qos, retain
        )

    def write(self, data: bytes) -> None:
        """Queue bytes for the socket."""
        self.pass_on(data)
        if len(data) > SMALL_MAX_BYTES:
            self.large_bytes += len(data)
            if self.large_bytes > OUT_MAX_BYTES and not self.blocked:
                self.blocked = self.choked = True

    def write_acks(self, head: bytes, packet_ids: Sequence[int]) -> None:
        """Queue acknowledgements without a reason. `head`: their fixed header."""
        self.traffic.packets_sent += len(packet_ids) - 1
        self.write(b"".join([head + each.to_bytes(2, "big") for each in packet_ids]))

    def pass_on(self, data: bytes) -> None:
        """Queue publishes as the bytes that came: never more than were read in this turn."""
        if not self.out:
            self.hub.outbox.writes.append(self)
        self.out.append(data)

    def write_run(self, data: bytes, qos: int, count: int, *, large: bool) -> None:
        """Queue `count` publishes of one QoS. `large`: the last one is, the others are not."""
        if large:
            self.write(data)
        else:
            self.pass_on(data)
        self.traffic.sent[qos] += count
        self.traffic.packets_sent += count - 1

    def written(self, now_ms: int, *, full: bool) -> None:
        """The socket has what was queued; where it is `full`, it takes no more for now."""
        self.large_bytes = 0
        if self.choked:
            self.choked = False
            if not full:
                self.unblocked(now_ms)

    def send(self, packet: Packet) -> None:
        """Queue a packet. Larger than the client takes: without reason string and user properties,
        or not at all [MQTT-3.1.2-24] [MQTT-3.1.2-25]."""
        data = encode(packet, self.version)
        if len(data) > self.packet_max_bytes:
            data = encode(shortened(packet), self.version)
            if len(data) > self.packet_max_bytes:
                self.hub.delivery.dropped_too_large += 1
                return
        self.write(data)

    def takes(self, packet: Packet) -> bool:
        """Whether a packet fits what the client takes, shortened as far as may be."""
        if self.packet_max_bytes == _UNBOUNDED_BYTES:
            return True
        return len(encode(shortened(packet), self.version)) <= self.packet_max_bytes

    def wire(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        now_ms: int,
    ) -> Wire:
        """PUBLISH for this client, under a topic alias where it takes one."""
        aliases = self.sent_aliases
        if aliases is None:
            return message.wire(self.version, qos, retain, identifiers, now_ms)
        return aliases.wire(message, qos, retain, identifiers, now_ms, self.packet_max_bytes)

    def redirect(self, permanent: bool, now_ms: int) -> None:
        """Send the client to the other server that is configured."""
        reason = Reason.SERVER_MOVED if permanent else Reason.USE_ANOTHER_SERVER
        self.hub.counters.connections_redirected += 1
        reference = self.hub.limits.server_reference
        self.close(reason, "use another server", now_ms, server_reference=reference)

    def close(
        self,
        reason: Reason,
        text: str,
        now_ms: int,
        *,
        with_will: bool = True,
        server_reference: str | None = None,
    ) -> None:
        """End the connection from this side, telling the client as far as its version can."""
        if self.state is State.CLOSED:
            return
        # Before CONNACK the reason goes into CONNACK; after it, only version 5 has a DISCONNECT
        # from the server (3.14).
        if self.state in BEFORE_CONNACK:
            self._say_connack(reason, text, server_reference)
        elif self.version == V5:
            said = disconnect_reason(reason)
            self.send(Disconnect(said, self._why(text, server_reference)))
        if not self.out:
            self.hub.outbox.writes.append(self)
        self.closing = text
        self.leave(now_ms, with_will=with_will)

    # -- inside

    def _say_connack(self, reason: Reason, text: str, server_reference: str | None) -> None:
        if self.decoder.version == V5:
            self.version = V5
            said = connack_reason(reason)
            self.send(Connack(False, said, self._why(text, server_reference)))
            return
        # 3.1.1 has no return code for a packet that is wrong: it asks to close without CONNACK
        # [MQTT-3.1.4-1 of 3.1.1]. Bytes that are no CONNECT of a known version get no answer
        # either.
        unsayable = reason in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR)
        known = self.decoder.version or reason is Reason.UNSUPPORTED_PROTOCOL_VERSION
        if known and not unsayable:
            self.send(Connack(False, return_code(reason)))

    def _why(self, text: str, server_reference: str | None = None) -> Properties:
        # CONNACK and DISCONNECT might have one all the same [MQTT-3.1.2-29]; the client asked for
        # none.
        if not self.wants_reasons:
            return Properties(server_reference=server_reference)
        return Properties(reason_string=text, server_reference=server_reference)

    def leave(self, now_ms: int, *, with_will: bool) -> None:
        """The connection is over; its session goes on without it."""
        if self.state is State.CLOSED:
            return
        # a will belongs to a connection that was let in
        with_will = with_will and self.state not in BEFORE_CONNACK
        self.state = State.CLOSED
        self.hub.connections.pop(self, None)
        self.hub.rights.forget(self)
        self.pending = None
        self.connect = None
        session = self.session
        # A session that was taken over has another connection by now, and keeps it.
        if session is not None and session.connection is self:
            self.hub.session_table.leave(session, now_ms, with_will=with_will)

    def __repr__(self) -> str:
        return f"Connection({self.client_id!r}, {self.peer_host}, {self.state.name})"
