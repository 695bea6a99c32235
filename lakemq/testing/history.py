"""What clients were told, held against what a cluster stores in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lakemq.broker_core.api.types import TopicPartition

_SHOWN_MAX: Final = 5


class Seen(NamedTuple):
    """A record at its place."""

    offset: int
    value: bytes | None


class History:
    """Acks and reads of many clients, in any order. Counts every one of them."""

    def __init__(self) -> None:
        self._acked: dict[TopicPartition, dict[int, bytes | None]] = {}
        self._read: dict[TopicPartition, dict[int, bytes | None]] = {}
        self._told_twice: list[str] = []
        self.acks = 0
        """Records that were acknowledged."""

    def acked(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        """The cluster said that the record lies there."""
        self.acks += 1
        place = self._acked.setdefault(TopicPartition(topic, partition), {})
        if offset in place:
            self._told_twice.append(
                f"{topic}/{partition}: offset {offset} was given to {place[offset]!r} and {value!r}"
            )
        place[offset] = value

    def read(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        """A reader was given this record."""
        place = self._read.setdefault(TopicPartition(topic, partition), {})
        if place.setdefault(offset, value) != value:
            self._told_twice.append(
                f"{topic}/{partition}: offset {offset} was read as {place[offset]!r} and {value!r}"
            )

    def topics(self) -> list[str]:
        """All that a client was told something of."""
        return sorted({each.topic for each in (*self._acked, *self._read)})

    def problems(
        self, stored: Mapping[TopicPartition, Sequence[Seen]], *, unique: bool = False
    ) -> list[str]:
        """What contradicts the history, a line each; empty: nothing. `stored`: all records of the
        topics, in the order in which they are read. `unique`: no value was sent twice, by
        idempotent producers, so none may be stored twice."""
        found = list(self._told_twice)
        for place in sorted({*stored, *self._acked, *self._read}):
            name = f"{place.topic}/{place.partition}"
            records = stored.get(place, ())
            there = {record.offset: record.value for record in records}
            found += _at_their_place(f"{name}: acknowledged", self._acked.get(place, {}), there)
            found += _at_their_place(f"{name}: read", self._read.get(place, {}), there)
            offsets = [record.offset for record in records]
            if offsets != list(range(offsets[0], offsets[0] + len(offsets)) if offsets else []):
                found.append(f"{name}: offsets are not one after the other")
        if unique:
            found += _stored_twice(stored)
        return found


def _at_their_place(
    what: str, told: Mapping[int, bytes | None], there: Mapping[int, bytes | None]
) -> list[str]:
    lost = [offset for offset in told if offset not in there]
    other = [offset for offset in told if offset in there and there[offset] != told[offset]]
    lines = []
    if lost:
        lines.append(f"{what} and lost: {_listed(lost)}")
    if other:
        lines.append(f"{what}, and another record is there now: {_listed(other)}")
    return lines


def _stored_twice(stored: Mapping[TopicPartition, Sequence[Seen]]) -> list[str]:
    counts = Counter(
        (place.topic, record.value) for place, records in stored.items() for record in records
    )
    twice = [f"{topic}: {value!r}" for (topic, value), count in counts.items() if count > 1]
    return [f"stored more than once: {_listed(twice)}"] if twice else []


def _listed(items: Iterable[object]) -> str:
    items = list(items)
    more = f", ... ({len(items)} in all)" if len(items) > _SHOWN_MAX else ""
    return ", ".join(map(str, items[:_SHOWN_MAX])) + more
