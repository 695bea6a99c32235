"""What one connection is known by, and what its client sent and got: plain values that the hot path
adds to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple


class Arrival(NamedTuple):
    """How a client came: to which listener, and with which verified certificate."""

    listener: str = "mqtt"
    certificate_subject: str | None = None
    certificate_names: tuple[str, ...] = ()


@dataclass(slots=True)
class Inflow:
    """What a connection sent that is not finished."""

    appends: int = 0
    """Publishes that are being stored."""
    appends_bytes: int = 0
    qos_1: int = 0
    """QoS 1 publishes that are not acknowledged; counted against the receive maximum."""
    qos_2: set[int] = field(default_factory=set)
    """QoS 2 publishes that are not released, by packet identifier; counted likewise."""
    order: deque[int] = field(default_factory=deque)
    """Packet identifiers of QoS 1 and 2 publishes that have not been answered, as they came:
    partitions and topics store theirs each at its own time, and answers must keep the order of the
    publishes [MQTT-4.6.0-2], [MQTT-4.6.0-3]."""
    unsaid_2: set[int] = field(default_factory=set)
    """QoS 2 publishes that came, or came again, on this connection and have had no PUBREC on it."""
    early: dict[int, deque[Callable[[], None]]] = field(default_factory=dict)
    """Answers that wait for those before them."""

    def begun(self, packet_id: int, qos: int, size_bytes: int) -> None:
        """A publish goes to storage."""
        self.appends += 1
        self.appends_bytes += size_bytes
        if qos:
            self.order.append(packet_id)

    def take(self, packet_ids: Sequence[int]) -> bool:
        """Whether these are the next to be answered; they are taken off then."""
        order = self.order
        if len(packet_ids) == 1:  # as a rule
            if order and order[0] == packet_ids[0]:
                order.popleft()
                return True
            return False
        if list(islice(order, len(packet_ids))) != packet_ids:
            return False
        for _ in packet_ids:
            order.popleft()
        return True

    def in_turn(self, packet_id: int, answer: Callable[[], None]) -> None:
        """Call `answer` when all publishes before this one have been answered."""
        order = self.order
        if order and order[0] != packet_id:
            self.early.setdefault(packet_id, deque()).append(answer)
            return
        if order:
            order.popleft()
        answer()
        self.go_on()

    def go_on(self) -> None:
        """Give the answers whose turn has come."""
        order, early = self.order, self.early
        while early and order and (answers := early.get(order[0])):
            # A client may send an identifier again before it is answered.
            answer = answers.popleft()
            if not answers:
                del early[order[0]]
            order.popleft()
            answer()


NOTHING_CAME: Final = Inflow()
"""Of all connections that have published nothing: a third of what an idle one would take. Never
written to: a publish finds its route first, and gives its connection an `Inflow` of its own."""


class Traffic:
    """Counts of one network connection."""

    __slots__ = (
        "blocked_ms", "bytes_received", "bytes_sent", "connected_ms", "dropped",
        "packets_received", "packets_sent", "received", "sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connected_ms = 0
        """When CONNACK was said."""
        self.bytes_received = 0
        self.bytes_sent = 0
        self.packets_received = 0
        self.packets_sent = 0
        self.received = [0, 0, 0]
        """Publishes by QoS."""
        self.sent = [0, 0, 0]
        self.dropped = 0
        """QoS 0 publishes that its socket had no room for."""
        self.blocked_ms = 0
        """When its socket began to take no more; counts while the connection is blocked."""
