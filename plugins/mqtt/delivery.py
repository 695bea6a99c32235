"""Publishes on their way out to one client: window, packet identifiers, QoS 1 and 2. Pure.

QoS 1: PUBLISH -> PUBACK. QoS 2: PUBLISH -> PUBREC -> PUBREL -> PUBCOMP. What does not fit the
window, or finds no connection, waits in a bounded queue.

Source: MQTT 5.0 section 4.3 (QoS), 4.4 (redelivery), 4.6 (order), 4.9 (flow control).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plugins.mqtt.encoding import PUBREL
from plugins.mqtt.messages import Message

if TYPE_CHECKING:
    from plugins.mqtt.protocol import Connection
    from plugins.mqtt.shared import Group

PACKET_ID_MAX = 65_535


@dataclass(slots=True)
class DeliveryLimits:
    """Bounds that all sessions share, and what happened at them."""

    inflight_max: int = 1000
    """Most publishes sent to one client and not acknowledged, whatever it allows."""
    queue_count_max: int = 10_000
    queue_bytes_max: int = 64 * 1024 * 1024
    queue_full: str = "drop_oldest"
    """`drop_oldest`, `drop_newest` or `disconnect`."""
    dropped_queue_full: int = 0
    dropped_expired: int = 0
    dropped_too_large: int = 0
    dropped_qos_0: int = 0
    sent: int = 0


class Delivery:
    """One message for one session."""

    __slots__ = ("identifiers", "message", "qos", "released", "retain", "shared")

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        shared: Group | None,
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.shared = shared
        """The group whose member the session got it as."""
        self.released = False
        """QoS 2: PUBREC came; PUBREL is sent, PUBCOMP awaited."""


class Outbound:
    """What one session still has to deliver, in order."""

    __slots__ = ("_next_id", "_resend", "inflight", "limits", "queue", "queue_bytes", "unacked")

    def __init__(self, limits: DeliveryLimits) -> None:
        self.limits = limits
        self.inflight: dict[int, Delivery] = {}
        """By packet identifier, in the order in which they were first sent."""
        self.queue: deque[Delivery] | None = None
        self.queue_bytes = 0
        self.unacked = 0
        """Of `inflight`, those sent on the present connection."""
        self._resend: deque[int] | None = None
        self._next_id = 1

    @property
    def load(self) -> int:
        """Deliveries not finished."""
        return len(self.inflight) + (len(self.queue) if self.queue else 0)

    def offer(self, delivery: Delivery, connection: Connection | None, now_ms: int) -> bool:
        """Send a QoS 1 or 2 delivery, or queue it. False: the queue is full and the client's
        connection shall end."""
        if (
            connection is None
            or self.queue
            or self._resend
            or connection.blocked
            or self.unacked >= connection.window
        ):
            return self._enqueue(delivery)
        self._send_new(delivery, connection, now_ms)
        return True

    def _enqueue(self, delivery: Delivery) -> bool:
        if self.queue is None:
            self.queue = deque()
        limits, size = self.limits, delivery.message.size_bytes
        while (
            len(self.queue) >= limits.queue_count_max
            or self.queue_bytes + size > limits.queue_bytes_max
        ):
            limits.dropped_queue_full += 1
            if limits.queue_full != "drop_oldest" or not self.queue:
                return limits.queue_full != "disconnect"
            self.queue_bytes -= self.queue.popleft().message.size_bytes
        self.queue.append(delivery)
        self.queue_bytes += size
        return True

    def _send_new(self, delivery: Delivery, connection: Connection, now_ms: int) -> None:
        """Give the delivery a packet identifier and send it."""
        packet_id = self._next_id
        while packet_id in self.inflight:
            packet_id = packet_id % PACKET_ID_MAX + 1
        self._next_id = packet_id % PACKET_ID_MAX + 1
        if self._transmit(delivery, packet_id, connection, now_ms, dup=False):
            self.inflight[packet_id] = delivery
            self.unacked += 1

    def _transmit(
        self, delivery: Delivery, packet_id: int, connection: Connection, now_ms: int, *, dup: bool
    ) -> bool:
        """Write PUBLISH; False: it is larger than the client takes, so it counts as delivered
        [MQTT-3.1.2-25]."""
        head, rest = connection.wire(
            delivery.message, delivery.qos, delivery.retain, delivery.identifiers, now_ms
        )
        packet = b"".join((head, packet_id.to_bytes(2, "big"), rest))
        if len(packet) > connection.packet_bytes_max:
            self.limits.dropped_too_large += 1
            return False
        if dup:
            packet = bytes((packet[0] | 0x08,)) + packet[1:]
        connection.write(packet)
        self.limits.sent += 1
        return True

    def acknowledge(self, packet_id: int, connection: Connection, now_ms: int) -> bool:
        """PUBACK, PUBCOMP, or PUBREC that refuses: the delivery is finished. False: no such."""
        if self.inflight.pop(packet_id, None) is None:
            return False
        if self.unacked:
            self.unacked -= 1
        if self.queue or self._resend:
            self.pump(connection, now_ms)
        return True

    def received(self, packet_id: int) -> bool:
        """PUBREC: never send this PUBLISH again [MQTT-4.3.3-6]. False: no such delivery."""
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return False
        delivery.released = True
        return True

    def resume(self, connection: Connection, now_ms: int) -> None:
        """On a new connection: send again what is in flight, in order, then what waits
        [MQTT-4.4.0-1] [MQTT-4.6.0-1]."""
        self.unacked = 0
        self._resend = deque(self.inflight) if self.inflight else None
        self.pump(connection, now_ms)

    def pump(self, connection: Connection, now_ms: int) -> None:
        """Send what waits, as far as the window and the socket allow."""
        while self._resend and self.unacked < connection.window:
            packet_id = self._resend.popleft()
            delivery = self.inflight.get(packet_id)
            if delivery is None:
                continue
            if delivery.released:
                connection.write(PUBREL + packet_id.to_bytes(2, "big"))
            elif not self._transmit(delivery, packet_id, connection, now_ms, dup=True):
                del self.inflight[packet_id]
                continue
            self.unacked += 1
        if self._resend:
            return
        queue = self.queue
        while queue and self.unacked < connection.window and not connection.blocked:
            delivery = queue.popleft()
            self.queue_bytes -= delivery.message.size_bytes
            if delivery.message.expired(now_ms):  # [MQTT-3.3.2-5]
                self.limits.dropped_expired += 1
            else:
                self._send_new(delivery, connection, now_ms)
        if queue is not None and not queue:
            self.queue = None

    def unfinished(self) -> Iterator[Delivery]:
        """What a shared group's other members may get when this session ends: never a QoS 2
        publish that its client may have seen [MQTT-4.8.2-5]."""
        yield from (one for one in self.inflight.values() if one.qos == 1)
        yield from self.queue or ()
