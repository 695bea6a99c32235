"""Where a reader begins: at an end of the log, an offset, or a time; alike for all partitions or
for each its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    Unavailable,
    UnknownPartition,
)
from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.arguments import first_offset, moment_ms
from lakemq.plugins.native.sdk.types import TopicOffsets

if TYPE_CHECKING:
    from lakemq.plugins.native.sdk.net.connection import Connection

Where = int | str | datetime
"""An offset; `earliest` or `latest`; or a time, with a time zone: the first record that is not
older."""
Start = Where | Mapping[TopicPartition, Where]
"""For all partitions, or for some of them; the others begin at `earliest`."""
_NOT_TOLD: Final = ("remote", "offline")
"""States of a partition that its leader has not described."""


def checked(start: Start) -> Start:
    """Raises InvalidRequest, naming what is no place to begin at."""
    if isinstance(start, Mapping):
        return check_mapping(start)
    _check(start)
    return start


def check_mapping(starts: Mapping[TopicPartition, Where]) -> dict[TopicPartition, Where]:
    """As `checked`, of one place for each partition."""
    for place, where in starts.items():
        if not isinstance(place, TopicPartition):
            raise InvalidRequest(f"{place!r:.60} is no TopicPartition")
        _check(where)
    return dict(starts)


def _check(where: object, name: str = "start") -> None:
    if isinstance(where, datetime):
        moment_ms(name, where)
        return
    if isinstance(where, bool) or not isinstance(where, int | str):
        raise InvalidRequest(
            f"{name} is {where!r:.60}; it takes 'earliest', 'latest', an offset >= 0 or a datetime"
        )
    first_offset(where, 0, 0, name)


async def told_offsets(
    connection: Connection, described: TopicOffsets, wanted: Mapping[int, Where]
) -> dict[int, int]:
    """Partition -> offset to begin at, of those whose leader tells it. Raises UnknownPartition."""
    found = {each.partition: each for each in described.partitions}
    for number in wanted:
        if number not in found:
            raise UnknownPartition(f"topic {described.name} has no partition {number}")
    moments = {where for where in wanted.values() if isinstance(where, datetime)}
    at_moment = {
        moment: await connection.offsets_for_timestamp(
            described.name, moment_ms("start", moment), described
        )
        for moment in moments
    }
    starts = {}
    for number, where in wanted.items():
        if isinstance(where, datetime):
            if number in at_moment[where]:
                starts[number] = at_moment[where][number]
        elif where != "latest" or found[number].state not in _NOT_TOLD:
            low, high = found[number].log_start_offset, found[number].high_watermark
            starts[number] = first_offset(where, low, high)
    return starts


async def first_offsets(
    connection: Connection, described: TopicOffsets, wanted: Mapping[int, Where]
) -> dict[int, int]:
    """Partition -> offset to begin at. Raises UnknownPartition; Unavailable: no leader tells it."""
    starts = await told_offsets(connection, described, wanted)
    for each in described.partitions:
        if each.partition in wanted and each.partition not in starts:
            why = each.detail or "no node leads it"
            raise Unavailable(
                f"no node tells offsets of {described.name} partition {each.partition}: {why}"
            )
    return starts


async def consume_starts(
    connection: Connection, topic: str, partition: int | None, start: Where
) -> dict[int, int]:
    """Offset to begin at of all partitions of a topic, or of one. Raises UnknownPartition,
    Unavailable."""
    _check(start)
    described = await connection.describe_topic(topic)
    numbers = (
        [each.partition for each in described.partitions] if partition is None else [partition]
    )
    return await first_offsets(connection, described, dict.fromkeys(numbers, start))


async def scan_bounds(
    connection: Connection, topic: str, start: Where, end: Where, partitions: Iterable[int] | None
) -> tuple[TopicOffsets, dict[int, tuple[int, int]]]:
    """The topic as it is now, and of its partitions, or of some of them, the offsets [first, end)
    that lie between the two places; none behind the high watermark. Raises UnknownPartition,
    OffsetOutOfRange: the log starts behind an offset that was given, Unavailable: a partition has
    no leader that tells where it ends."""
    _check(start)
    _check(end, "end")
    described = await connection.describe_topic(topic)
    found = {each.partition: each for each in described.partitions}
    numbers = sorted(found if partitions is None else set(partitions))
    for number in numbers:
        # Offsets that no leader told may be too low: the scan would lack records and say nothing.
        if number in found and found[number].state in _NOT_TOLD:
            why = found[number].detail or "no node leads it"
            raise Unavailable(f"no node tells where {topic}-{number} ends: {why}")
    firsts = await first_offsets(connection, described, dict.fromkeys(numbers, start))
    ends = await first_offsets(connection, described, dict.fromkeys(numbers, end))
    bounds = {}
    for number in numbers:
        low, last = found[number].log_start_offset, found[number].high_watermark
        if firsts[number] < low:
            raise OffsetOutOfRange(
                f"topic {topic} partition {number} starts at offset {low}; {firsts[number]} and "
                "what follows it are no longer there"
            )
        until = min(ends[number], last)
        bounds[number] = (min(firsts[number], until), until)
    return described, bounds


async def given_starts(
    connection: Connection, topic: str, starts: Mapping[int, Where]
) -> dict[int, int]:
    """Offset to begin at of each of these partitions. Raises as `first_offsets`."""
    offsets = {number: where for number, where in starts.items() if isinstance(where, int)}
    others = {number: where for number, where in starts.items() if number not in offsets}
    if others:
        for where in others.values():
            _check(where)
        described = await connection.describe_topic(topic)
        offsets |= await first_offsets(connection, described, others)
    return {number: offsets[number] for number in starts}


def where_of(start: Start, place: TopicPartition) -> Where:
    """What `start` says of one partition."""
    return start.get(place, "earliest") if isinstance(start, Mapping) else start


Assigned = Mapping[TopicPartition, Where | None]
"""Partitions to read, and where to begin; None: where the group has committed, or at `start`."""


def assigned_given(
    partitions: Iterable[TopicPartition] | Mapping[TopicPartition, Where],
) -> Assigned:
    """What `assign` takes. Raises InvalidRequest."""
    if isinstance(partitions, Mapping):
        found: Assigned = check_mapping(partitions)
    else:
        try:
            found = dict.fromkeys(partitions)
        except TypeError:
            raise InvalidRequest(
                f"partitions is {partitions!r:.60}; it takes TopicPartitions"
            ) from None
        for place in found:
            if not isinstance(place, TopicPartition):
                raise InvalidRequest(f"{place!r:.60} is no TopicPartition")
    if not found:
        raise InvalidRequest("assign takes one partition or more")
    return found


def starts_of(assigned: Assigned, start: Start) -> dict[TopicPartition, Where]:
    """Where each begins that nothing was committed of."""
    return {at: where_of(start, at) if where is None else where for at, where in assigned.items()}
