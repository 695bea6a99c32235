"""Publishes on their way into topics: gathered per loop turn, acknowledged by outcome.

All publishes of one turn that go to one topic are one append, whatever connections and principals
they came from. Each carries a token, which takes the outcome back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Final, Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Acks, Columns, Placed, Principal
from lakemq.plugins.mqtt.wire.messages import Place

Outcome = Place | LakeMQError
"""Where a publish is stored, or why not."""


class AppendCallback(Protocol):
    """Hears what became of a publish."""

    def on_result(
        self, packet_id: int, qos: int, size_bytes: int, outcome: Outcome, now_ms: int
    ) -> None:
        """Called once for each publish, in the order of publishing as far as that is to one
        partition."""

    def on_appended(
        self, packet_ids: Sequence[int], size_bytes: int, somewhere: Place, now_ms: int
    ) -> None:
        """The same for QoS 1 publishes in a row that are stored; `size_bytes` of all of them."""
        (packet_id,) = packet_ids  # who has more than one knows better
        self.on_result(packet_id, 1, size_bytes, somewhere, now_ms)


Token = tuple[AppendCallback | None, int, int]
"""Who hears what became of a record, its packet identifier and QoS."""
FULL_COUNT: Final = 32
FULL_BYTES: Final = 64 * 1024
"""Records, or bytes, of an append that gains little from more."""
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
"""No topic gathers."""
PLUGIN: Final = Principal("mqtt", "node")
"""Who writes to the topics that the plugin keeps for itself."""


class PendingAppend:
    """Records for one topic and level of acks, of whatever clients, in the order they came."""

    __slots__ = (
        "_principal",
        "_somewhere",
        "_starts",
        "acks",
        "headers",
        "keys",
        "size_bytes",
        "tokens",
        "topic",
        "values",
    )

    def __init__(self, topic: str, acks: Acks) -> None:
        self.topic = topic
        self.acks = acks
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.size_bytes = 0
        """Of all values."""
        self.headers: list[bytes] = []
        self.tokens: list[Token] = []
        self._principal: Principal | None = None
        """Whose the last record is."""
        self._starts: list[tuple[Principal, int]] = []
        """Who published, and the index of the first record in a row that is theirs."""
        self._somewhere = Place(topic, -1, -1)

    def add(
        self,
        principal: Principal,
        key: bytes,
        value: bytes | None,
        headers: bytes,
        token: Token,
    ) -> None:
        """One more record. `principal` must be the hub's one object for it."""
        # By identity: comparing principals would cost more than the rest of this method.
        if principal is not self._principal:
            self._principal = principal
            self._starts.append((principal, len(self.values)))
        if value:
            self.size_bytes += len(value)
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)
        self.tokens.append(token)

    def add_run(
        self,
        principal: Principal,
        key: bytes,
        values: Sequence[bytes],
        headers: bytes,
        receiver: AppendCallback,
        packet_ids: Sequence[int],
    ) -> None:
        """`add` for QoS 1 publishes of one client under one key."""
        if principal is not self._principal:
            self._principal = principal
            self._starts.append((principal, len(self.values)))
        count = len(values)
        self.size_bytes += sum(map(len, values))
        self.keys += [key] * count
        self.values += values
        self.headers += [headers] * count
        self.tokens += zip(repeat(receiver, count), packet_ids, repeat(1), strict=False)

    def has_enough(self, count: int) -> bool:
        """Whether it has so many records, or gathering more would save little."""
        return len(self.values) >= count or self.size_bytes >= FULL_BYTES

    def columns(self) -> Columns:
        """The records as columns, which share these lists."""
        return Columns(self.values, self.keys, self.headers)

    def principals(self) -> list[tuple[Principal, int]]:
        """Who published, and how many records in a row."""
        ends = [start for _, start in self._starts[1:]]
        ends.append(len(self.values))
        return [(who, end - start) for (who, start), end in zip(self._starts, ends, strict=True)]

    def settle(
        self, indexes: Sequence[int], outcomes: Sequence[Placed | LakeMQError], now_ms: int
    ) -> None:
        """Tell the receivers of these publishes their outcomes.

        QoS 2 alone is given its place, which its session keeps; the others get one that says only
        that they are stored.
        """
        tokens, values = self.tokens, self.values
        if len(indexes) < len(tokens):
            tokens = [tokens[index] for index in indexes]
            values = [values[index] for index in indexes]
        self._tell(zip(tokens, values, outcomes, strict=True), now_ms)

    def _tell(
        self, rows: Iterable[tuple[Token, bytes | None, Placed | LakeMQError]], now_ms: int
    ) -> None:
        # QoS 1 publishes of one connection in a row share one call, which makes their PUBACKs one
        # write; any other outcome ends the row.
        owner: AppendCallback | None = None
        run: list[int] = []
        size_bytes = 0
        somewhere = self._somewhere
        for (receiver, packet_id, qos), value, outcome in rows:
            size = len(value) if value else 0
            if qos == 1 and type(outcome) is Placed:
                if receiver is owner:
                    run.append(packet_id)
                    size_bytes += size
                    continue
                if owner is not None:
                    owner.on_appended(run, size_bytes, somewhere, now_ms)
                owner, run, size_bytes = receiver, [packet_id], size
                continue
            if owner is not None:
                owner.on_appended(run, size_bytes, somewhere, now_ms)
                owner = None
            if receiver is not None:
                place: Outcome = somewhere
                if isinstance(outcome, LakeMQError):
                    place = outcome
                elif qos == 2:
                    place = Place(self.topic, outcome.partition, outcome.offset)
                receiver.on_result(packet_id, qos, size, place, now_ms)
        if owner is not None:
            owner.on_appended(run, size_bytes, somewhere, now_ms)

    def fail(self, error: LakeMQError, now_ms: int) -> None:
        """The same error for all."""
        count = len(self.tokens)
        self.settle(range(count), [error] * count, now_ms)


class Appends:
    """What waits for the end of this loop turn."""

    __slots__ = ("_last", "_pending")

    def __init__(self) -> None:
        self._pending: dict[tuple[str, Acks], PendingAppend] = {}
        self._last: PendingAppend | None = None

    def __bool__(self) -> bool:
        return bool(self._pending)

    def to(self, topic: str, acks: Acks) -> PendingAppend:
        """Where records for the topic go."""
        last = self._last
        # As a rule: publishes of one turn go to one topic.
        if last is not None and last.topic == topic and last.acks is acks:
            return last
        key = (topic, acks)
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = PendingAppend(topic, acks)
        self._last = pending
        return pending

    def ready(self, enough: Mapping[str, int] = NOTHING) -> bool:
        """Whether `take` would return anything."""
        # asked for every packet, so the usual cases come first and without a call
        if not self._pending or not enough:
            return bool(self._pending)
        last = self._last
        if last is not None and len(self._pending) == 1:
            count = enough.get(last.topic, 0)
            return len(last.values) >= count or last.size_bytes >= FULL_BYTES
        return any(one.has_enough(enough.get(one.topic, 0)) for one in self._pending.values())

    def take(self, enough: Mapping[str, int] = NOTHING) -> list[PendingAppend]:
        """What was gathered so far; the next records begin a new append. What goes to the topics in
        `enough` goes on gathering until it has that many records."""
        pending = [
            one for one in self._pending.values() if one.has_enough(enough.get(one.topic, 0))
        ]
        for one in pending:
            del self._pending[one.topic, one.acks]
        self._last = None  # it may be one of those taken, which must not grow any more
        return pending
