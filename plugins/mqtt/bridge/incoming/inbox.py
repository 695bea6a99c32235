"""Publishes of the remote broker: stored first, then acknowledged; QoS 2 exactly once.

Answers leave in the order in which the publishes came [MQTT-4.6.0-2], [MQTT-4.6.0-3]. Of QoS 2
publishes the packet identifier is kept from when they are durable until the durable note that they
were released: one that comes again in between is answered and not stored again. One without DUP is
always a new one [MQTT-3.3.1-1].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """PUBACK (QoS 1) or PUBREC (QoS 2) that is due."""

    qos: int
    packet_id: int


class Arrival:
    """A publish that is being stored."""

    __slots__ = ("answer", "settled", "size_bytes")

    def __init__(self, answer: Answer, size_bytes: int) -> None:
        self.answer = answer
        self.size_bytes = size_bytes
        self.settled = False


class Inbox:
    """Publishes on their way in."""

    def __init__(self, bytes_max: int) -> None:
        self.received = 0
        """Publishes that are durable here."""
        self.repeated = 0
        """QoS 2 publishes that came again and were not stored again."""
        self.changed = False
        self.size_bytes = 0
        """Bytes that are being stored."""
        self.unreleased: set[int] = set()
        """Packet identifiers of QoS 2 publishes that are stored and not released."""
        self.positions: dict[tuple[str, int], int] = {}
        """Up to where records of each partition are in `unreleased` or done with."""
        self._bytes_max = bytes_max
        self._arrivals: deque[Arrival] = deque()
        self._storing: set[int] = set()
        """Packet identifiers of QoS 2 publishes that are being stored."""
        self._under_way = 0

    @property
    def full(self) -> bool:
        """Whether nothing may be read until something is stored."""
        return self.size_bytes >= self._bytes_max

    @property
    def idle(self) -> bool:
        """Nothing is being stored."""
        return self._under_way == 0

    def seen(self, answer: Answer, *, again: bool) -> bool:
        """Whether a publish is here already. `again`: it has the DUP flag."""
        if answer.qos < 2 or not again:
            return False
        known = answer.packet_id in self.unreleased or answer.packet_id in self._storing
        self.repeated += known
        return known

    def arrived(self, answer: Answer, size_bytes: int) -> Arrival:
        """A publish is to be stored."""
        one = Arrival(answer, size_bytes)
        self.size_bytes += size_bytes
        self._under_way += 1
        if answer.qos == 2:
            self._storing.add(answer.packet_id)
        self._arrivals.append(one)
        return one

    def settled(self, one: Arrival, place: tuple[str, int, int] | None) -> list[Answer]:
        """A publish is durable (at topic, partition, offset), or needs no storing (None). Returns
        the answers that are due now."""
        self._end(one)
        if place is not None:
            self.received += 1
            topic, partition, offset = place
            self.positions[topic, partition] = offset + 1
        if one.answer.qos == 2:
            self.unreleased.add(one.answer.packet_id)
        # What was stored before an earlier publish waits for that, to be answered in order.
        due = []
        while self._arrivals and self._arrivals[0].settled:
            answer = self._arrivals.popleft().answer
            if answer.qos:
                due.append(answer)
        return due

    def failed(self, one: Arrival) -> None:
        """A publish could not be stored: it is not answered, and comes again on the next link."""
        self._end(one)
        # QoS 0 has no answer, so those behind it are not held up.
        one.answer = Answer(0, 0)

    def _end(self, one: Arrival) -> None:
        self.size_bytes -= one.size_bytes
        self._under_way -= 1
        self._storing.discard(one.answer.packet_id)
        one.settled = True

    def released(self, packet_id: int) -> None:
        """PUBREL: `state()` must be durable before its PUBCOMP."""
        if packet_id in self.unreleased:
            self.unreleased.discard(packet_id)
            self.changed = True

    def new_session(self) -> None:
        """The remote broker has no session of ours: its packet identifiers start over."""
        if self.unreleased:
            self.unreleased.clear()
            self.changed = True

    def link_lost(self) -> None:
        """What waits to be answered comes again."""
        self._arrivals.clear()

    def state(self) -> dict[str, Any]:
        """What must be durable, for JSON."""
        self.changed = False
        return {
            "unreleased": sorted(self.unreleased),
            "positions": [[topic, part, at] for (topic, part), at in self.positions.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned. Raises KeyError, TypeError, ValueError."""
        self.unreleased = {int(each) for each in state["unreleased"]}
        self.positions = {
            (str(topic), int(part)): int(at) for topic, part, at in state["positions"]
        }
