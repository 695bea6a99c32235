"""Records in flight to the remote broker, and the offsets from which reading continues.

A cursor reads one partition. `state()` is what must be durable: a process that stops at any point
continues from it. QoS 2 is exactly once because packet identifiers are in the state before their
PUBLISH is sent, and PUBRECs before their PUBREL is (MQTT 3.1.1, 4.3.3, method of the sender).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PACKET_IDS = 65_535


class Forward(NamedTuple):
    """A record to forward."""

    name: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(slots=True, eq=False)
class Sent:
    """A record that the remote broker has not acknowledged completely."""

    cursor: PartitionCursor
    offset: int
    forward: Forward | None
    """None: known from the persisted state alone; it must be read again."""
    packet_id: int = 0
    received: bool = False
    """QoS 2: the remote broker has it (PUBREC)."""
    since_ms: int = 0
    """When it was last sent, or answered in part."""
    resent: bool = False
    exactly_once: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes held in memory for it."""
        return len(self.forward.payload) + len(self.forward.name) if self.forward else 0


@dataclass(slots=True, eq=False)
class PartitionCursor:
    """Where reading one partition stands, and what of it is in flight."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    """The next offset to read: everything below is finished or in `unfinished`."""
    unfinished: dict[int, Sent] = field(default_factory=dict)
    """By offset."""

    @property
    def begin_offset(self) -> int:
        """Everything below is finished."""
        return min(self.unfinished, default=self.next_offset)


class Outbox:
    """The outgoing side of one link: its cursors and what is in flight."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.cursors: dict[tuple[str, int], PartitionCursor] = {}
        self.sent = 0
        """Records that the remote broker acknowledged."""
        self.changed = False
        """Whether `state()` differs from what was asked for last."""
        self.size_bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._by_id: dict[int, Sent] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return sum(len(cursor.unfinished) for cursor in self.cursors.values())

    @property
    def room(self) -> int:
        """How many more records may be in flight."""
        if self.size_bytes >= self._bytes_max:
            return 0
        return max(0, self._count_max - len(self))

    # -- sending

    def take(self, cursor: PartitionCursor, offset: int, forward: Forward, now_ms: int) -> Sent:
        """Send a record; with QoS 1 and 2 it is unfinished from now on."""
        one = Sent(cursor, offset, forward, since_ms=now_ms, exactly_once=forward.qos == 2)
        # Moved in the same step as the record becomes unfinished: `state()` never misses it.
        cursor.next_offset = offset + 1
        self.changed = True
        if forward.qos:
            cursor.unfinished[offset] = one
            self._identify(one)
            self.size_bytes += one.size_bytes
        else:
            self.sent += 1
        return one

    def skip(self, cursor: PartitionCursor, next_offset: int) -> None:
        """Continue at `next_offset`; nothing below it is sent."""
        if next_offset > cursor.next_offset:
            cursor.next_offset = next_offset
            self.changed = True

    def go_back(self, cursor: PartitionCursor, next_offset: int) -> int:
        """Continue at a lower offset, since the log has no records from there on: others will have
        their offsets. Returns how many unfinished ones are given up."""
        gone = [one for offset, one in cursor.unfinished.items() if offset >= next_offset]
        for one in gone:
            self.finish(one, forwarded=False)
        cursor.next_offset = next_offset
        self.changed = True
        return len(gone)

    def _identify(self, one: Sent) -> None:
        packet_id = self._last_id % PACKET_IDS + 1
        # It ends: `inflight_max` is far below the number of identifiers.
        while packet_id in self._by_id:
            packet_id = packet_id % PACKET_IDS + 1
        self._last_id = one.packet_id = packet_id
        self._by_id[packet_id] = one

    # -- answers

    def acked(self, packet_id: int) -> bool:
        """PUBACK; False: no publish of QoS 1 has this packet identifier."""
        one = self._by_id.get(packet_id)
        if one is None or one.exactly_once:
            return False
        self.finish(one)
        return True

    def received(self, packet_id: int, now_ms: int) -> bool:
        """PUBREC. True: `state()` must be durable, then PUBREL is due."""
        one = self._by_id.get(packet_id)
        if one is None or not one.exactly_once:
            return False
        if not one.received:
            # Only PUBREL is sent from now on, never the PUBLISH again [MQTT-4.3.3-6].
            self._drop_bytes(one)
        one.received, one.since_ms = True, now_ms
        self.changed = True
        return True

    def completed(self, packet_id: int) -> bool:
        """PUBCOMP; False: no publish that was released has this packet identifier."""
        one = self._by_id.get(packet_id)
        if one is None or not one.received:
            return False
        self.finish(one)
        return True

    def finish(self, one: Sent, *, forwarded: bool = True) -> None:
        """Remove a record that is acknowledged, or given up."""
        self._drop_bytes(one)
        self._by_id.pop(one.packet_id, None)
        del one.cursor.unfinished[one.offset]
        self.sent += forwarded
        self.changed = True

    def _drop_bytes(self, one: Sent) -> None:
        self.size_bytes -= one.size_bytes
        one.forward = None

    # -- lost connections

    def all_unfinished(self) -> Iterator[Sent]:
        """Unfinished records, in the order in which each cursor sent them."""
        for cursor in self.cursors.values():
            for offset in sorted(cursor.unfinished):
                yield cursor.unfinished[offset]

    def restart(self, session_present: bool) -> bool:
        """Prepare for a new connection; whether records must be read again before they are sent.

        A remote broker that has forgotten our session has forgotten what it received and we had not
        released: that is sent again as new, since losing it would be worse than repeating it.
        """
        missing = False
        for one in self.all_unfinished():
            one.resent = True
            if not session_present and one.received:
                one.received, one.resent = False, False
                self.changed = True
            missing = missing or (one.forward is None and not one.received)
        return missing

    def restore(self, one: Sent, forward: Forward) -> None:
        """Take the bytes of an unfinished record that was read again."""
        # The rule may ask for another QoS by now, but an identifier stays in the exchange that it
        # was used in.
        one.forward = forward._replace(qos=2 if one.exactly_once else max(1, forward.qos))
        self.size_bytes += one.size_bytes
        # QoS 1 keeps no identifier beyond the process: it goes out as new, and may be repeated.
        if not one.packet_id:
            one.exactly_once, one.resent = False, False
            one.forward = one.forward._replace(qos=1)
            self._identify(one)

    def oldest_ms(self) -> int | None:
        """When the record was sent that waits longest for an acknowledgement; None: none waits."""
        return min((one.since_ms for one in self.all_unfinished()), default=None)

    def give_up_releases(self, before_ms: int) -> None:
        """PUBRELs that were sent again and not answered since: the remote broker, which answers
        otherwise, does not know them any more, so it has done with them."""
        for one in list(self.all_unfinished()):
            if one.received and one.resent and one.since_ms < before_ms:
                self.finish(one)

    # -- persisted state

    def state(self) -> list[dict[str, Any]]:
        """What must be durable, for JSON. `docs/formats/bridge.md` describes it."""
        self.changed = False
        return [
            {
                "topic": cursor.topic,
                "topic_id": cursor.topic_id,
                "partition": cursor.partition,
                "next": cursor.next_offset,
                "unfinished": [
                    [one.offset, one.packet_id if one.exactly_once else 0, int(one.received)]
                    for _, one in sorted(cursor.unfinished.items())
                ],
            }
            for cursor in self.cursors.values()
        ]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Continue from what `state` returned. Raises KeyError, TypeError, ValueError."""
        for each in state:
            cursor = PartitionCursor(
                each["topic"], each["topic_id"], int(each["partition"]), int(each["next"])
            )
            for offset, packet_id, received in each["unfinished"]:
                one = Sent(cursor, int(offset), None, int(packet_id), bool(received), 0, True)
                one.exactly_once = one.packet_id > 0
                cursor.unfinished[one.offset] = one
                if one.packet_id:
                    self._by_id[one.packet_id] = one
                    self._last_id = max(self._last_id, one.packet_id)
            self.cursors[cursor.topic, cursor.partition] = cursor

    def drop(self, cursor: PartitionCursor) -> int:
        """Drop the cursor of a deleted partition; returns how many unfinished records went with
        it."""
        count = len(cursor.unfinished)
        for one in list(cursor.unfinished.values()):
            self.finish(one, forwarded=False)
        self.cursors.pop((cursor.topic, cursor.partition), None)
        self.changed = True
        return count
