"""Publishes on their way out to one client: window, packet identifiers, QoS 1 and 2.

QoS 1: PUBLISH -> PUBACK. QoS 2: PUBLISH -> PUBREC -> PUBREL -> PUBCOMP. What does not fit the
window, or finds no connection, waits in a bounded queue. What lies in the journal waits there: the
queue of a client that is away holds places, and messages are asked for
(`Outbox.loads`) when it is their turn.

In a session that outlives its connection, a QoS 2 PUBLISH is sent once its packet identifier is
kept, and PUBREL once the PUBREC is kept: so a crash in between never makes a second delivery of it.

Source: MQTT 5.0 section 4.3 (QoS), 4.4 (redelivery), 4.6 (order), 4.9 (flow control).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, Protocol

from lakemq.plugins.mqtt.state.decisions import Decisions, Kind
from lakemq.plugins.mqtt.state.ledger import Action
from lakemq.plugins.mqtt.state.peer import SMALL_MAX_BYTES, Peer
from lakemq.plugins.mqtt.state.slow import SlowClients
from lakemq.plugins.mqtt.wire.encoding import PUBREL
from lakemq.plugins.mqtt.wire.messages import Message, Place

# Not `Final`, as QUEUE_KEPT_MAX: simulations make them small, in compiled modules too.
PACKET_ID_MAX: int = 65_535
IN_MEMORY_COUNT_MAX: Final = 1000
IN_MEMORY_MAX_BYTES: Final = 1024 * 1024
"""What a connected client's queue holds beyond both this count and these bytes waits in the
journal, too."""
LOAD_COUNT_MAX: Final = 500
"""Most messages asked for at once."""
ENTRY_BYTES: Final = 240
"""About what an entry of a queue takes beside its message (bytes)."""
QUEUE_KEPT_MAX: int = 10_000
"""Most entries of a queue that are kept with their session. The rest is matched again after a
crash: a connected client may have more, and a session is written often."""
_UNBOUNDED: Final = 1 << 62


@dataclass(slots=True)
class DeliveryLimits:
    """Bounds that all sessions share, and what happened at them."""

    inflight_max: int = 1000
    """Most publishes sent to one client and not acknowledged, whatever it allows."""
    queue_count_max: int = 10_000
    queue_max_bytes: int = 64 * 1024 * 1024
    queue_full: str = "drop_oldest"
    """`drop_oldest`, `drop_newest` or `disconnect`."""
    queue_expiry_ms: int = 0
    """Longest that a publish waits in a queue; 0: as long as it takes."""
    slow: SlowClients = field(default_factory=lambda: SlowClients(0))
    """Deliveries that took long."""
    decisions: Decisions = field(default_factory=Decisions)
    """Deliveries that there were none of, and why."""
    dropped_queue_full: int = 0
    dropped_expired: int = 0
    dropped_too_large: int = 0
    dropped_qos_0: int = 0
    dropped_gone: int = 0
    sent: int = 0


class Delivery:
    """One message for one session."""

    __slots__ = (
        "awaiting",
        "gone",
        "identifiers",
        "message",
        "offered_ms",
        "place",
        "qos",
        "released",
        "retain",
        "shared",
        "size_bytes",
        "streamed",
    )

    def __init__(
        self,
        message: Message | None,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        shared: object | None = None,
        place: Place | None = None,
        size_bytes: int = 0,
    ) -> None:
        """`size_bytes`: of the message, where that is not loaded and is known."""
        self.message = message
        """None: it lies in the journal and is not loaded."""
        self.place = message.place if message is not None else place
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.shared = shared
        """The group (`routing.shared`) whose member the session got it as."""
        self.released = False
        """QoS 2: PUBREC came; PUBREL is sent, PUBCOMP awaited."""
        self.awaiting = False
        """QoS 2: its packet identifier is not kept yet, so it was not sent."""
        self.offered_ms = 0
        """When it was there for the client; 0: in an earlier life of the broker."""
        self.gone = False
        """It was asked for, and the journal has it no longer."""
        if message is not None:
            size_bytes = len(message.topic) + len(message.payload) + len(message.properties)
        self.size_bytes = ENTRY_BYTES + size_bytes
        """What counts in a queue, whether the message is loaded or lies in the journal."""
        self.streamed = False
        """It came with the records of its partition, in their order, so it can be matched again."""

    def unload(self) -> None:
        """Let go of the message, if it can be had again."""
        if self.place is not None:
            self.message = None


class _Tail:
    """The part of a queue that is not kept with its session."""

    __slots__ = ("others", "start", "until")

    def __init__(self, until: int) -> None:
        self.until = until
        """Number of entries taken out of the queue at which it is looked through again: before any
        of this part is delivered."""
        self.start: dict[tuple[str, int], int] = {}
        """(topic, partition) -> offset of its first record in it."""
        self.others: list[Delivery] = []
        """What matching those records again does not bring."""

    def add(self, delivery: Delivery) -> None:
        """Note one more delivery behind the kept part."""
        place = delivery.place
        if delivery.streamed and place is not None:
            self.start.setdefault(place[:2], place.offset)
        else:
            self.others.append(delivery)


class OutboundOwner(Protocol):
    """The session that an `Outbound` belongs to."""

    client_id: str
    connection: Peer | None

    @property
    def durable(self) -> bool:
        """Whether the session is kept beyond the process."""

    def keep(self, connection: Peer | None, action: Action, now_ms: int) -> None:
        """Do `action` once the session as it is now is kept."""

    def touch(self) -> None:
        """Something changed that may be kept later."""

    def has_room(self) -> None:
        """The client can be given more than before."""

    def miss(self) -> None:
        """Messages must be loaded before the next can be sent."""


class Outbound:
    """What one session still has to deliver, in order."""

    __slots__ = (
        "_away_count_max",
        "_next_id",
        "_resend",
        "_tail",
        "_taken",
        "dropped",
        "inflight",
        "limits",
        "loading",
        "queue",
        "queue_bytes",
        "session",
        "unacked",
    )

    def __init__(self, session: OutboundOwner, limits: DeliveryLimits) -> None:
        self.session = session
        self.limits = limits
        self.inflight: dict[int, Delivery] = {}
        """By packet identifier, in the order in which they were first sent."""
        self.queue: deque[Delivery] | None = None
        self.queue_bytes = 0
        self.dropped = 0
        """Deliveries that the queue had no room for."""
        self.unacked = 0
        """Of `inflight`, those sent on the present connection."""
        self.loading = False
        """Messages were asked for; nothing more is sent until they are there."""
        self._resend: deque[int] | None = None
        self._next_id = 1
        self._away_count_max = _UNBOUNDED
        """Most entries while the client is away."""
        self._taken = 0
        """Entries taken out of the queue so far."""
        self._tail: _Tail | None = None

    @property
    def load(self) -> int:
        """Deliveries not finished."""
        return len(self.inflight) + (len(self.queue) if self.queue else 0)

    @property
    def resending(self) -> bool:
        """Whether deliveries of an earlier connection are to be sent again first."""
        return bool(self._resend)

    def offer(self, delivery: Delivery, connection: Peer | None, now_ms: int) -> bool:
        """Send a QoS 1 or 2 delivery, or queue it. False: the queue is full and the client's
        connection shall end."""
        delivery.offered_ms = now_ms
        if delivery.message is None:
            accepted = self._enqueue(delivery, connection)
            if connection is not None:
                self.pump(connection, now_ms)
            return accepted
        if (
            connection is None
            or self.queue
            or self._resend
            or connection.blocked
            or self.unacked >= connection.window
        ):
            return self._enqueue(delivery, connection)
        self._send_new(delivery, connection, now_ms)
        return True

    def _enqueue(self, delivery: Delivery, connection: Peer | None) -> bool:
        queue = self.queue
        if queue is None:
            queue = self.queue = deque()
        # Beyond both bounds: many small messages may stay in memory, and a few large ones.
        if connection is None or (
            len(queue) >= IN_MEMORY_COUNT_MAX and self.queue_bytes >= IN_MEMORY_MAX_BYTES
        ):
            delivery.unload()
        limits, size = self.limits, delivery.size_bytes
        count_max = self._away_count_max if connection is None else _UNBOUNDED
        while len(queue) >= count_max or self.queue_bytes + size > limits.queue_max_bytes:
            limits.dropped_queue_full += 1
            self.dropped += 1
            # An empty queue: this one alone is larger than the bound.
            if limits.queue_full != "drop_oldest" or not queue:
                self._note("queue_full", delivery)
                return limits.queue_full != "disconnect"
            self._note("queue_full", self._next(queue))
        queue.append(delivery)
        self.queue_bytes += size
        if len(queue) > QUEUE_KEPT_MAX and self._tail is not None:
            self._tail.add(delivery)
        return True

    def _note(self, kind: Kind, delivery: Delivery) -> None:
        """There will be no such delivery."""
        client_id = self.session.client_id
        self.limits.decisions.dropped(kind, client_id, delivery.message, delivery.place)

    def _next(self, queue: deque[Delivery]) -> Delivery:
        """Take the oldest out of the queue."""
        delivery = queue.popleft()
        self.queue_bytes -= delivery.size_bytes
        self._taken += 1
        return delivery

    def kept_queue(self) -> tuple[list[Delivery], dict[tuple[str, int], int]]:
        """Entries that are kept with the session, and for each partition the offset from which its
        records are matched again for the rest; no offsets: all are kept."""
        queue = self.queue
        if queue is None or len(queue) <= QUEUE_KEPT_MAX:
            self._tail = None
            return list(queue or ()), {}
        if self._tail is None or self._taken >= self._tail.until:
            self._tail = _Tail(self._taken + QUEUE_KEPT_MAX // 2)
            for one in islice(queue, QUEUE_KEPT_MAX, None):
                self._tail.add(one)
        head = list(islice(queue, QUEUE_KEPT_MAX))
        there = set(map(id, head))  # what was behind it when the tail was looked through
        return head + [one for one in self._tail.others if id(one) not in there], self._tail.start

    def restore(self, inflight: list[tuple[int, Delivery]], queue: list[Delivery]) -> None:
        """What was kept of an earlier life."""
        self.inflight = dict(inflight)
        self.queue = deque(queue) if queue else None
        self.queue_bytes = sum(delivery.size_bytes for delivery in queue)
        self._tail = None
        self._next_id = max(self.inflight, default=0) % PACKET_ID_MAX + 1

    def leave(self) -> None:
        """The client is away from now on. What came while it was here stays, though it be more than
        waits for one that is away."""
        # Else the first publish after it left would drop all that is above the bound.
        self._away_count_max = max(self.limits.queue_count_max, len(self.queue or ()))
        self.unload()

    def unload(self) -> None:
        """What lies in the journal is kept there alone."""
        for delivery in chain(self.inflight.values(), self.queue or ()):
            delivery.unload()

    # -- sending

    def _send_new(self, delivery: Delivery, connection: Peer, now_ms: int) -> None:
        """Give the delivery a packet identifier and send it."""
        # The next one that is not in use [MQTT-2.2.1-4].
        packet_id = self._next_id
        while packet_id in self.inflight:
            packet_id = packet_id % PACKET_ID_MAX + 1
        self._next_id = packet_id % PACKET_ID_MAX + 1
        if delivery.qos == 2 and self.session.durable:
            # Before the session is written, so that its record holds the identifier: after a crash
            # the PUBLISH goes out under the same one [MQTT-4.4.0-1].
            self.inflight[packet_id] = delivery
            self._send_when_kept(delivery, packet_id, connection, now_ms)
        elif self._transmit(delivery, packet_id, connection, now_ms, dup=False):
            self.inflight[packet_id] = delivery
            self.unacked += 1

    def _send_when_kept(
        self, delivery: Delivery, packet_id: int, connection: Peer, now_ms: int
    ) -> None:
        # It takes its place in the window now: others may fill it before the session is kept.
        delivery.awaiting = True
        self.unacked += 1

        def send(now_ms: int) -> None:
            if delivery.awaiting and self.inflight.get(packet_id) is delivery:
                delivery.awaiting = False
                assert delivery.message is not None
                if self._too_old(delivery.message, now_ms):  # [MQTT-3.3.2-5]: not begun yet
                    self.limits.dropped_expired += 1
                    self._note("expired", delivery)
                    self.acknowledge(packet_id, connection, now_ms)
                elif not self._transmit(delivery, packet_id, connection, now_ms, dup=False):
                    self.acknowledge(packet_id, connection, now_ms)

        self.session.keep(connection, send, now_ms)

    def _transmit(
        self, delivery: Delivery, packet_id: int, connection: Peer, now_ms: int, *, dup: bool
    ) -> bool:
        """Write PUBLISH; False: it is larger than the client takes, so it counts as delivered
        [MQTT-3.1.2-25]."""
        assert delivery.message is not None
        head, rest = connection.wire(
            delivery.message, delivery.qos, delivery.retain, delivery.identifiers, now_ms
        )
        packet = b"".join((head, packet_id.to_bytes(2, "big"), rest))
        if len(packet) > connection.packet_max_bytes:
            self.limits.dropped_too_large += 1
            self._note("too_large", delivery)
            return False
        if dup:
            # Patched here, so that the encoded message stays one for all who get it alike.
            packet = bytes((packet[0] | 0x08,)) + packet[1:]
        connection.write(packet)
        connection.traffic.sent[delivery.qos] += 1
        self.limits.sent += 1
        return True

    # -- what the client answers

    def acknowledge(self, packet_id: int, connection: Peer, now_ms: int) -> bool:
        """PUBACK, PUBCOMP, or PUBREC that refuses: the delivery is finished. False: no such."""
        delivery = self.inflight.pop(packet_id, None)
        if delivery is None:
            return False
        if now_ms - delivery.offered_ms >= self.limits.slow.threshold_ms:
            self._note_slow(delivery, connection, now_ms)
        self._finished(1, connection, now_ms)
        return True

    def acknowledge_run(
        self, packet_ids: Sequence[int], connection: Peer, now_ms: int, *, completes: bool = False
    ) -> Delivery | None:
        """PUBACKs, or PUBCOMPs if it `completes`, that came together. Returns the first delivery
        that such a packet can't finish, where there is one; what is behind it is not looked at."""
        inflight, wrong, before = self.inflight, None, len(self.inflight)
        slow_ms, slowest, slow = now_ms - self.limits.slow.threshold_ms, None, 0
        for packet_id in packet_ids:
            delivery = inflight.get(packet_id)
            if delivery is None:
                continue
            if (delivery.qos == 2) is not completes or delivery.released is not completes:
                wrong = delivery
                break
            del inflight[packet_id]
            if delivery.offered_ms <= slow_ms:
                slow += 1
                if slowest is None or delivery.offered_ms < slowest.offered_ms:
                    slowest = delivery
        if slowest is not None:
            self._note_slow(slowest, connection, now_ms, slow)
        if finished := before - len(inflight):
            self._finished(finished, connection, now_ms)
        return wrong

    def _finished(self, count: int, connection: Peer, now_ms: int) -> None:
        """So many deliveries are finished: there may be room for others."""
        # Some may be in flight since an earlier connection and not sent on this one yet.
        self.unacked = max(0, self.unacked - count)
        self.session.touch()
        if self.queue or self._resend:
            self.pump(connection, now_ms)
        self.session.has_room()

    def _note_slow(self, delivery: Delivery, connection: Peer, now_ms: int, count: int = 1) -> None:
        """It, the slowest of `count`, took long, unless the client was away meanwhile."""
        slow, message = self.limits.slow, delivery.message
        waited_ms = now_ms - max(delivery.offered_ms, connection.traffic.connected_ms)
        if waited_ms >= slow.threshold_ms and message is not None:
            slow.note(self.session.client_id, message.topic, waited_ms, now_ms, count)

    def received(self, packet_ids: Sequence[int]) -> int:
        """PUBRECs: never send these PUBLISHes again [MQTT-4.3.3-6]. Returns how many were noted, up
        to the first that is about no such delivery."""
        inflight, count = self.inflight, 0
        for packet_id in packet_ids:
            delivery = inflight.get(packet_id)
            if delivery is None or delivery.qos != 2 or delivery.awaiting:
                break
            delivery.released = True
            count += 1
        return count

    # -- what waits

    def resume(self, connection: Peer, now_ms: int) -> None:
        """On a new connection: send again what is in flight, in order, then what waits
        [MQTT-4.4.0-1] [MQTT-4.6.0-1]."""
        # The send quota starts over with each network connection (4.9).
        self.unacked = 0
        self._resend = deque(self.inflight) if self.inflight else None
        self.pump(connection, now_ms)

    def pump(self, connection: Peer, now_ms: int) -> None:
        """Send what waits, as far as the window, the socket and loaded messages allow; nothing
        before CONNACK, since the connection counts as blocked until then [MQTT-3.2.0-1]."""
        # Nothing overtakes a delivery whose message is being loaded (4.6).
        if self.loading:
            return
        while self._resend and self.unacked < connection.window and not connection.blocked:
            if not self._resend_next(self._resend, connection, now_ms):
                return
        queue = self.queue
        # What is new waits until all of the old is sent again [MQTT-4.6.0-1].
        if self._resend or queue is None:
            return
        while queue and self.unacked < connection.window and not connection.blocked:
            if self._send_run(queue, connection, now_ms):
                continue
            if not self._ready(queue[0], connection):
                return
            self._send_next(queue, connection, now_ms)
        if not queue:
            self.queue = None

    def _send_next(self, queue: deque[Delivery], connection: Peer, now_ms: int) -> None:
        """Send the first of the queue, unless its message is gone or too old."""
        delivery = self._next(queue)
        if delivery.message is None:
            self.limits.dropped_gone += 1
            self._note("gone", delivery)
        elif self._too_old(delivery.message, now_ms):  # [MQTT-3.3.2-5]
            self.limits.dropped_expired += 1
            self._note("expired", delivery)
        else:
            self._send_new(delivery, connection, now_ms)

    def _send_run(self, queue: deque[Delivery], connection: Peer, now_ms: int) -> int:
        """Send the QoS 1 deliveries at the front of the queue in one piece, up to a large one and
        as far as the window allows; returns how many. If none, the first needs a closer look."""
        inflight, wire, expiring = self.inflight, connection.wire, self.limits.queue_expiry_ms > 0
        packet_id, parts, size, taken_bytes = self._next_id, list[bytes](), 0, 0
        for delivery in islice(queue, max(0, connection.window - self.unacked)):
            message = delivery.message
            if message is None or delivery.qos != 1:
                break
            if (expiring or message.expires_ms is not None) and self._too_old(message, now_ms):
                break
            head, rest = wire(message, 1, delivery.retain, delivery.identifiers, now_ms)
            if len(head) + len(rest) + 2 > connection.packet_max_bytes:
                break
            size = len(head) + len(rest) + 2
            while packet_id in inflight:  # [MQTT-2.2.1-4]
                packet_id = packet_id % PACKET_ID_MAX + 1
            inflight[packet_id] = delivery
            parts += (head, packet_id.to_bytes(2, "big"), rest)
            packet_id = packet_id % PACKET_ID_MAX + 1
            taken_bytes += delivery.size_bytes
            if size > SMALL_MAX_BYTES:
                break
        count = len(parts) // 3
        if count:
            self._next_id = packet_id
            self.queue_bytes -= taken_bytes
            self._taken += count
            for _ in range(count):
                queue.popleft()
            self.unacked += count
            self.limits.sent += count
            connection.write_run(b"".join(parts), 1, count, large=size > SMALL_MAX_BYTES)
        return count

    def _too_old(self, message: Message, now_ms: int) -> bool:
        """Whether it has waited too long, by its own word or by the broker's."""
        longest_ms = self.limits.queue_expiry_ms
        return message.expired(now_ms) or 0 < longest_ms <= now_ms - message.arrived_ms

    def _resend_next(self, resend: deque[int], connection: Peer, now_ms: int) -> bool:
        """Send one delivery again; False: its message must be loaded first."""
        packet_id = resend[0]
        delivery = self.inflight.get(packet_id)
        if delivery is None:
            resend.popleft()
            return True
        if delivery.released:  # [MQTT-4.3.3-6]: PUBREL again, never the PUBLISH
            connection.write(PUBREL + packet_id.to_bytes(2, "big"))
            self.unacked += 1
        elif not self._ready(delivery, connection):
            return False
        elif delivery.message is None:
            self.limits.dropped_gone += 1
            self._note("gone", delivery)
            del self.inflight[packet_id]
        elif delivery.awaiting:
            self._send_when_kept(delivery, packet_id, connection, now_ms)
        elif self._transmit(delivery, packet_id, connection, now_ms, dup=True):
            self.unacked += 1
        else:
            del self.inflight[packet_id]
        resend.popleft()
        return True

    def _ready(self, delivery: Delivery, connection: Peer) -> bool:
        """Whether the message is there, or is known to be gone; else ask for it."""
        if delivery.message is not None or delivery.gone:
            return True
        self.loading = True
        self.session.miss()
        return False

    def missing(self) -> list[Delivery]:
        """The next deliveries whose messages must be loaded, in order."""
        return list(islice(self._missing(), LOAD_COUNT_MAX))

    def _missing(self) -> Iterator[Delivery]:
        for packet_id in self._resend or ():
            one = self.inflight.get(packet_id)
            if one is not None and not one.released and one.message is None and not one.gone:
                yield one
        for one in self.queue or ():
            if one.message is None and not one.gone:
                yield one

    def loaded(self, found: list[tuple[Delivery, Message | None]], now_ms: int) -> None:
        """Messages that were asked for; None: it is gone."""
        self.loading = False
        for delivery, message in found:
            delivery.message = message
            delivery.gone = message is None
        connection = self.session.connection
        if connection is not None:
            self.pump(connection, now_ms)
            self.session.has_room()
        else:  # it has left meanwhile: what was loaded would only take memory
            self.unload()

    def unfinished(self) -> Iterator[Delivery]:
        """What a shared group's other members may get when this session ends: never a QoS 2
        publish that its client may have seen [MQTT-4.8.2-5]."""
        for one in self.inflight.values():
            if one.qos == 1 or one.awaiting:
                yield one
        yield from self.queue or ()
