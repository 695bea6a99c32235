"""Publishes on their way into topics: gathered per loop turn, acknowledged by outcome. Pure.

All publishes of one turn that go to one topic under one principal are one call of the broker,
whatever connections they came on. Each carries a token, which takes the outcome back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Acks, Columns, Placed, Principal
from lakemq.plugins.mqtt.wire.messages import Place

Outcome = Place | LakeMQError
"""Where a publish is stored, or why not."""


class Receiver(Protocol):
    """Who is told what became of a publish."""

    def settled(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """Called once for each publish, in the order of publishing."""

    def stored(
        self, packet_ids: Sequence[int], size_bytes: int, somewhere: Place, now_ms: int
    ) -> None:
        """The same for QoS 1 publishes in a row that are stored; `size_bytes` of all of them."""
        (packet_id,) = packet_ids  # who has more than one knows better
        self.settled(packet_id, 1, size_bytes, somewhere, now_ms)


PLUGIN: Final = Principal("mqtt", "node")
"""Who writes to the topics that the plugin keeps for itself."""


class Lane:
    """Records for one topic under one principal."""

    __slots__ = ("acks", "headers", "keys", "principal", "_somewhere", "tokens", "topic", "values")

    def __init__(self, topic: str, principal: Principal, acks: Acks) -> None:
        self.topic = topic
        self.principal = principal
        self.acks = acks
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.headers: list[bytes] = []
        self.tokens: list[tuple[Receiver | None, int, int]] = []
        """Receiver, packet identifier, QoS of each record."""
        self._somewhere = Place(topic, -1, -1)

    def columns(self) -> Columns:
        return Columns(self.values, self.keys, self.headers)

    def settle(self, outcomes: Sequence[Placed | LakeMQError], now_ms: int) -> None:
        """Tell each publish's receiver its outcome. The place is told of QoS 2 alone; of the
        others, that there is one."""
        owner: Receiver | None = None
        run: list[int] = []
        size_bytes = 0
        rows = zip(self.tokens, self.values, outcomes, strict=True)
        for (receiver, packet_id, qos), value, outcome in rows:
            if qos == 1 and receiver is owner and type(outcome) is Placed:
                run.append(packet_id)
                size_bytes += len(value or b"")
                continue
            if owner is not None and run:
                owner.stored(run, size_bytes, self._somewhere, now_ms)
            owner, run, size_bytes = None, [], 0
            if qos == 1 and type(outcome) is Placed:
                owner, run, size_bytes = receiver, [packet_id], len(value or b"")
            elif receiver is not None:
                place: Outcome = self._somewhere
                if isinstance(outcome, LakeMQError):
                    place = outcome
                elif qos == 2:
                    place = Place(self.topic, outcome.partition, outcome.offset)
                receiver.settled(packet_id, qos, len(value or b""), place, now_ms)
        if owner is not None:
            owner.stored(run, size_bytes, self._somewhere, now_ms)

    def fail(self, error: LakeMQError, now_ms: int) -> None:
        """The same error for all."""
        self.settle([error] * len(self.tokens), now_ms)


class Appends:
    """Lanes that wait for the end of this loop turn."""

    __slots__ = ("_lanes", "_last")

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int, Acks], Lane] = {}
        self._last: Lane | None = None

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def lane(self, topic: str, principal: Principal, acks: Acks) -> Lane:
        """Where records for the topic go. `principal` must be the hub's one object for it."""
        last = self._last
        if (
            last is not None
            and last.topic == topic
            and last.principal is principal
            and last.acks is acks
        ):
            return last
        key = (topic, id(principal), acks)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(topic, principal, acks)
        self._last = lane
        return lane

    def take(self) -> list[Lane]:
        """All lanes gathered so far; the next records begin new ones."""
        lanes = list(self._lanes.values())
        self._lanes.clear()
        self._last = None
        return lanes
