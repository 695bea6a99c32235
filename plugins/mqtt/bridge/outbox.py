"""What is on its way to the remote broker, and from where reading goes on.

A *lane* reads one partition. `state()` is what must be durable; a process that ends at any point
begins again from it. QoS 2 is exactly once because packet identifiers are in the state before their
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
    """A record that the remote broker has not answered in full."""

    lane: Lane
    offset: int
    forward: Forward | None
    """None: known from the kept state alone; its bytes must be read again."""
    packet_id: int = 0
    received: bool = False
    """QoS 2: the remote broker has it (PUBREC)."""
    since_ms: int = 0
    """When it was last sent, or answered in part."""
    resent: bool = False
    exactly_once: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.forward.payload) + len(self.forward.name) if self.forward else 0


@dataclass(slots=True, eq=False)
class Lane:
    """One partition on its way out."""

    topic: str
    topic_id: str
    partition: int
    next_offset: int
    """What is read next: everything below is done, or unfinished."""
    unfinished: dict[int, Sent] = field(default_factory=dict)
    """By offset."""

    @property
    def begin_offset(self) -> int:
        """Everything below is done."""
        return min(self.unfinished, default=self.next_offset)


class Outbox:
    """All lanes of one link."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.sent = 0
        """Records that the remote broker has."""
        self.changed = False
        """Whether `state()` differs from what was asked for last."""
        self.size_bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._by_id: dict[int, Sent] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return sum(len(lane.unfinished) for lane in self.lanes.values())

    @property
    def room(self) -> int:
        """How many more may be under way."""
        if self.size_bytes >= self._bytes_max:
            return 0
        return max(0, self._count_max - len(self))

    # -- sending

    def take(self, lane: Lane, offset: int, forward: Forward, now_ms: int) -> Sent:
        """A record goes out. Of QoS 1 and 2 it is unfinished from now on."""
        one = Sent(lane, offset, forward, since_ms=now_ms, exactly_once=forward.qos == 2)
        lane.next_offset = offset + 1
        self.changed = True
        if forward.qos:
            lane.unfinished[offset] = one
            self._identify(one)
            self.size_bytes += one.size_bytes
        else:
            self.sent += 1
        return one

    def skip(self, lane: Lane, next_offset: int) -> None:
        """Nothing below `next_offset` goes out."""
        if next_offset > lane.next_offset:
            lane.next_offset = next_offset
            self.changed = True

    def _identify(self, one: Sent) -> None:
        packet_id = self._last_id % PACKET_IDS + 1
        while packet_id in self._by_id:
            packet_id = packet_id % PACKET_IDS + 1
        self._last_id = one.packet_id = packet_id
        self._by_id[packet_id] = one

    # -- answers

    def acked(self, packet_id: int) -> bool:
        """PUBACK. False: nobody waits for it."""
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
            self._drop_bytes(one)
        one.received, one.since_ms = True, now_ms
        self.changed = True
        return True

    def completed(self, packet_id: int) -> bool:
        """PUBCOMP. False: nobody waits for it."""
        one = self._by_id.get(packet_id)
        if one is None or not one.received:
            return False
        self.finish(one)
        return True

    def finish(self, one: Sent, *, forwarded: bool = True) -> None:
        """Nothing more is to do about it."""
        self._drop_bytes(one)
        self._by_id.pop(one.packet_id, None)
        del one.lane.unfinished[one.offset]
        self.sent += forwarded
        self.changed = True

    def _drop_bytes(self, one: Sent) -> None:
        self.size_bytes -= one.size_bytes
        one.forward = None

    # -- links that break

    def all_unfinished(self) -> Iterator[Sent]:
        """In the order in which each lane sent them."""
        for lane in self.lanes.values():
            for offset in sorted(lane.unfinished):
                yield lane.unfinished[offset]

    def restart(self, session_present: bool) -> bool:
        """A new link stands. Returns whether something was to be sent that is no longer at hand.

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
        """The bytes of an unfinished record were read again."""
        one.forward = forward._replace(qos=2 if one.exactly_once else max(1, forward.qos))
        self.size_bytes += one.size_bytes
        if not one.packet_id:
            one.exactly_once, one.resent = False, False
            one.forward = one.forward._replace(qos=1)
            self._identify(one)

    def oldest_ms(self) -> int | None:
        """Since when the longest wait for an answer lasts."""
        return min((one.since_ms for one in self.all_unfinished()), default=None)

    def give_up_releases(self, before_ms: int) -> None:
        """PUBRELs that were sent again and not answered since: the remote broker, which answers
        otherwise, does not know them any more, so it has done with them."""
        for one in list(self.all_unfinished()):
            if one.received and one.resent and one.since_ms < before_ms:
                self.finish(one)

    # -- what is kept

    def state(self) -> list[dict[str, Any]]:
        """What must be durable, for JSON. `docs/formats/bridge.md` describes it."""
        self.changed = False
        return [
            {
                "topic": lane.topic,
                "topic_id": lane.topic_id,
                "partition": lane.partition,
                "next": lane.next_offset,
                "unfinished": [
                    [one.offset, one.packet_id if one.exactly_once else 0, int(one.received)]
                    for _, one in sorted(lane.unfinished.items())
                ],
            }
            for lane in self.lanes.values()
        ]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Begin again from what `state` said. KeyError, TypeError, ValueError: it is none."""
        for each in state:
            lane = Lane(each["topic"], each["topic_id"], int(each["partition"]), int(each["next"]))
            for offset, packet_id, received in each["unfinished"]:
                one = Sent(lane, int(offset), None, int(packet_id), bool(received), 0, True)
                one.exactly_once = one.packet_id > 0
                lane.unfinished[one.offset] = one
                if one.packet_id:
                    self._by_id[one.packet_id] = one
                    self._last_id = max(self._last_id, one.packet_id)
            self.lanes[lane.topic, lane.partition] = lane

    def forget(self, lane: Lane) -> int:
        """The partition is gone; returns how many records are given up with it."""
        count = len(lane.unfinished)
        for one in list(lane.unfinished.values()):
            self.finish(one, forwarded=False)
        self.lanes.pop((lane.topic, lane.partition), None)
        self.changed = True
        return count
