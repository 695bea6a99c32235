"""Publishes on their way into topics: gathered per loop turn, acknowledged by outcome.

All publishes of one turn that go to one topic are one append, whatever connections and principals
they came from. Each carries a token, which takes the outcome back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat
from types import MappingProxyType
from typing import Final, Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import Acks, Columns, Offset, Placed, Principal
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

    def on_received(
        self, packet_ids: Sequence[int], size_bytes: int, first: Place, now_ms: int
    ) -> None:
        """The same for QoS 2 publishes in a row: the first is stored at `first`, the others behind
        it."""
        (packet_id,) = packet_ids
        self.on_result(packet_id, 2, size_bytes, first, now_ms)


Token = tuple[AppendCallback | None, int, int]
"""Who hears what became of a record, its packet identifier and QoS."""
Row = tuple[AppendCallback | None, Sequence[int], int, int]
"""The same of a record, or of publishes of one QoS in a row that have one key, and their bytes."""
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
        "_begins",
        "_principal",
        "_somewhere",
        "_starts",
        "acks",
        "headers",
        "keys",
        "rows",
        "size_bytes",
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
        self.rows: list[Row] = []
        self._begins: list[int] = []
        """Of each row, the index of its first record; found out when they are asked for."""
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
        receiver, packet_id, qos = token
        size = len(value) if value else 0
        self.size_bytes += size
        self.keys.append(key)
        self.values.append(value)
        self.headers.append(headers)
        self.rows.append((receiver, (packet_id,), qos, size))

    def add_run(
        self,
        principal: Principal,
        key: bytes,
        values: Sequence[bytes],
        headers: Sequence[bytes],
        receiver: AppendCallback,
        packet_ids: Sequence[int],
        qos: int = 1,
    ) -> None:
        """`add` for publishes of one client and QoS, 1 or 2, under one key."""
        if principal is not self._principal:
            self._principal = principal
            self._starts.append((principal, len(self.values)))
        count, size = len(values), sum(map(len, values))
        self.size_bytes += size
        self.keys += [key] * count
        self.values += values
        self.headers += headers
        self.rows.append((receiver, packet_ids, qos, size))

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

    def settle(self, indexes: Sequence[int], outcome: Placed | LakeMQError, now_ms: int) -> None:
        """Tell the receivers of these publishes what became of them: where the first is stored, and
        the others behind it, or why none is."""
        rows = self.rows if len(indexes) == len(self.values) else self._some(indexes)
        if isinstance(outcome, LakeMQError):
            for receiver, packet_ids, qos, size in rows:
                sizes = chain((size,), repeat(0))  # of a run with its first
                for packet_id, size_bytes in zip(packet_ids, sizes, strict=False):
                    if receiver is not None:
                        receiver.on_result(packet_id, qos, size_bytes, outcome, now_ms)
        else:
            self._tell(rows, outcome, now_ms)

    def fail(self, error: LakeMQError, now_ms: int) -> None:
        """The same error for all."""
        self.settle(range(len(self.values)), error, now_ms)

    def _some(self, indexes: Sequence[int]) -> Iterator[Row]:
        """Rows of these records. What has one key goes to one partition, but perhaps in several
        batches; interceptors may have given each record of a row another key."""
        at, end = 0, len(indexes)
        if not self._begins:
            sizes = [len(packet_ids) for _, packet_ids, _, _ in self.rows]
            self._begins = list(accumulate(sizes, initial=0))
        while at < end:
            index = indexes[at]
            number = bisect_right(self._begins, index) - 1
            row = receiver, packet_ids, qos, _ = self.rows[number]
            first = index - self._begins[number]
            some = packet_ids[first : first + end - at]
            if indexes[at + len(some) - 1] != index + len(some) - 1:
                some = some[:1]
            at += len(some)
            if len(some) < len(packet_ids):
                values = self.values[index : index + len(some)]
                row = receiver, some, qos, sum([len(value) for value in values if value])
            yield row

    def _tell(self, rows: Iterable[Row], stored: Placed, now_ms: int) -> None:
        """QoS 2 alone is given its place, which its session keeps; the others get one that says
        only that they are stored."""
        # QoS 1 publishes of one connection in a row share one call, which makes their PUBACKs one
        # write.
        owner: AppendCallback | None = None
        run: list[int] = []
        run_bytes, offset = 0, stored.offset
        somewhere = self._somewhere
        for receiver, packet_ids, qos, size in rows:
            if qos == 1 and receiver is owner:
                run += packet_ids
                run_bytes += size
            else:
                if owner is not None:
                    owner.on_appended(run, run_bytes, somewhere, now_ms)
                owner, run, run_bytes = None, [*packet_ids], size
                if qos == 1:
                    owner = receiver
                elif receiver is None:
                    pass
                elif qos:
                    first = Place(self.topic, stored.partition, offset)
                    receiver.on_received(run, size, first, now_ms)
                else:
                    receiver.on_result(packet_ids[0], qos, size, somewhere, now_ms)
            offset = Offset(offset + len(packet_ids))
        if owner is not None:
            owner.on_appended(run, run_bytes, somewhere, now_ms)


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
