"""Single records -> record batches: what arrives in one turn of the loop shares a batch per
partition and level of acks. Work per record is a list append; encoding and appending are per batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

from lakemq.broker_core.api.errors import BatchTooLarge, InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.api.records.batch import RECORDS_MAX, encode, read_header
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, Placed, TopicInfo

Outcomes = list[Placed | LakeMQError]
_placed: Callable[[tuple[int, int]], Placed] = partial(tuple.__new__, Placed)
"""`Placed` from a pair, without a Python call for each of a batch's records."""
_RECORD_BYTES = 24
"""Fixed columns of one record, at most (bytes)."""
_HEADER_ROOM_BYTES = 256


class _Ticket:
    """One `publish` call: its outcomes fill up as partitions answer."""

    __slots__ = ("future", "missing", "outcomes")

    def __init__(self, count: int, future: asyncio.Future[Outcomes]) -> None:
        self.outcomes: list[Any] = [None] * count
        self.missing = count
        self.future = future

    def settle(self, places: Sequence[int] | range, outcomes: Sequence[Any]) -> None:
        if len(places) == len(self.outcomes):
            self.outcomes[:] = outcomes
        else:
            for place, outcome in zip(places, outcomes, strict=True):
                self.outcomes[place] = outcome
        self.missing -= len(places)
        if not self.missing and not self.future.done():
            self.future.set_result(self.outcomes)


@dataclass(slots=True)
class _Gathered:
    """Records for one log, of one or many calls."""

    log: PartitionLog
    topic: TopicInfo
    partition: int
    acks: Acks
    size_bytes: int = 0
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    times: list[int | None] = field(default_factory=list)
    has_keys: bool = False
    has_headers: bool = False
    shares: list[tuple[_Ticket, Sequence[int] | range]] = field(default_factory=list)

    def add(self, share: Columns, size_bytes: int) -> None:
        """More records; columns that a call left out are filled."""
        count = len(share.values)
        self.size_bytes += size_bytes
        self.values.extend(share.values)
        self.keys.extend(share.keys if share.keys is not None else [None] * count)
        self.headers.extend(share.headers if share.headers is not None else [b""] * count)
        self.times.extend(
            share.timestamps_ms if share.timestamps_ms is not None else [None] * count
        )
        self.has_keys |= share.keys is not None
        self.has_headers |= share.headers is not None

    def columns(self, now_ms: int) -> Columns:
        times: list[int] | None = None
        if any(time is not None for time in self.times):
            times = [now_ms if time is None else time for time in self.times]
        return Columns(
            self.values,
            self.keys if self.has_keys else None,
            self.headers if self.has_headers else None,
            times,
        )


class Publisher:
    """Gathers and appends. All methods run on the event loop."""

    def __init__(
        self,
        partition: Callable[[str, int], PartitionLog],
        now_ms: Callable[[], int],
        leads: Callable[[TopicInfo, int], bool] = lambda topic, partition: True,
    ) -> None:
        """`partition` raises NotLeader where another node takes the records; keyless ones go where
        this node `leads`, if it does anywhere."""
        self._partition = partition
        self._leads = leads
        self._now_ms = now_ms
        self._gathered: dict[tuple[str, int, Acks], _Gathered] = {}
        self._scheduled = False
        self._turn = 0

    def publish(
        self, topic: TopicInfo, columns: Columns, acks: Acks, partition: int | None
    ) -> asyncio.Future[Outcomes]:
        loop = asyncio.get_running_loop()
        count = len(columns.values)
        ticket = _Ticket(count, loop.create_future())
        if not count:
            ticket.future.set_result([])
            return ticket.future
        for home, places in self._homes(topic, columns, partition).items():
            self._gather(topic, home, columns, places, acks, ticket)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self.flush)
        return ticket.future

    def publish_without(
        self,
        topic: TopicInfo,
        columns: Columns,
        acks: Acks,
        partition: int | None,
        refused: Mapping[int, LakeMQError],
    ) -> asyncio.Future[Outcomes]:
        """`publish` of all records but those at the indexes of `refused`, whose outcomes these are:
        records of one call may be of many clients. Raises the first where none is left."""
        if not refused:
            return self.publish(topic, columns, acks, partition)
        kept = [at for at in range(len(columns.values)) if at not in refused]
        if not kept:
            raise next(iter(refused.values()))
        stored = self.publish(topic, _share(columns, kept), acks, partition)

        async def merged() -> Outcomes:
            found = {**refused, **dict(zip(kept, await stored, strict=True))}
            return [found[at] for at in range(len(columns.values))]

        return asyncio.get_running_loop().create_task(merged())

    def _homes(
        self, topic: TopicInfo, columns: Columns, partition: int | None
    ) -> dict[int, Sequence[int] | range]:
        """Partition -> places in `columns`; keyless records of one call stay together."""
        count, partitions = len(columns.values), topic.partitions
        if partition is not None or partitions == 1:
            return {partition or 0: range(count)}
        self._turn += 1
        sticky = self._sticky(topic)
        if columns.keys is None:
            return {sticky: range(count)}
        homes: dict[int, list[int]] = {}
        for place, key in enumerate(columns.keys):
            home = sticky if key is None else partition_of(key, partitions)
            homes.setdefault(home, []).append(place)
        return dict(homes)

    def _sticky(self, topic: TopicInfo) -> int:
        """Where keyless records of this call go: the next partition that this node leads."""
        first = self._turn % topic.partitions
        for step in range(topic.partitions):
            partition = (first + step) % topic.partitions
            if self._leads(topic, partition):
                return partition
        return first

    def _gather(
        self,
        topic: TopicInfo,
        home: int,
        columns: Columns,
        places: Sequence[int] | range,
        acks: Acks,
        ticket: _Ticket,
    ) -> None:
        share = _share(columns, places)
        size = _RECORD_BYTES * len(places) + sum(
            sum([len(cell) for cell in column if cell])
            for column in (share.values, share.keys or (), share.headers or ())
        )
        room = topic.config.batch_max_bytes - _HEADER_ROOM_BYTES
        if size > room or len(places) > RECORDS_MAX:
            self._gather_large(topic, home, columns, places, acks, ticket, room)
            return
        try:
            gathered = self._room_for(topic, home, acks, size, len(places))
        except LakeMQError as error:  # the other partitions of this call are not touched
            ticket.settle(places, [error] * len(places))
            return
        gathered.add(share, size)
        gathered.shares.append((ticket, places))

    def _room_for(
        self, topic: TopicInfo, home: int, acks: Acks, size: int, count: int
    ) -> _Gathered:
        """The batch under construction, sent off first if `count` more records of `size` bytes
        don't fit."""
        room = topic.config.batch_max_bytes - _HEADER_ROOM_BYTES
        place = (topic.topic_id, home, acks)
        gathered = self._gathered.get(place)
        if gathered is not None and (
            gathered.size_bytes + size > room or len(gathered.values) + count > RECORDS_MAX
        ):
            self._send(self._gathered.pop(place))
            gathered = None
        if gathered is None:
            log = self._partition(topic.name, home)
            gathered = self._gathered[place] = _Gathered(log, topic, home, acks)
        return gathered

    def _gather_large(
        self,
        topic: TopicInfo,
        home: int,
        columns: Columns,
        places: Sequence[int] | range,
        acks: Acks,
        ticket: _Ticket,
        room: int,
    ) -> None:
        """More than one batch: halve until it fits; a single record that doesn't is refused."""
        if len(places) == 1:
            error = BatchTooLarge(f"a record for topic {topic.name} is larger than {room} bytes")
            ticket.settle(places, [error])
            return
        middle = len(places) // 2
        for half in (places[:middle], places[middle:]):
            self._gather(topic, home, columns, half, acks, ticket)

    def flush(self) -> None:
        """Append all that was gathered."""
        self._scheduled = False
        gathered, self._gathered = self._gathered, {}
        for each in gathered.values():
            self._send(each)

    def _send(self, gathered: _Gathered) -> None:
        try:
            now_ms = self._now_ms()
            batch = encode(gathered.columns(now_ms), now_ms=now_ms)
            future = gathered.log.append(batch, read_header(batch), gathered.acks)
        except LakeMQError as error:
            _refuse(gathered, error)
            return
        except Exception as error:  # columns that no batch holds must not take others with them
            _refuse(gathered, InvalidRequest(f"topic {gathered.topic.name}: {error}"))
            return
        future.add_done_callback(lambda done: _settle(gathered, done))


def _share(columns: Columns, places: Sequence[int] | range) -> Columns:
    """The records at `places`; all of them without a copy."""
    if len(places) == len(columns.values):
        return columns
    values, keys, headers, times = columns
    return Columns(
        [values[place] for place in places],
        None if keys is None else [keys[place] for place in places],
        None if headers is None else [headers[place] for place in places],
        None if times is None else [times[place] for place in places],
    )


def _settle(gathered: _Gathered, done: asyncio.Future[AppendResult]) -> None:
    if done.cancelled():
        _refuse(gathered, LakeMQError("the append was cancelled"))
        return
    error = done.exception()
    if error is not None:
        known = error if isinstance(error, LakeMQError) else LakeMQError(repr(error))
        _refuse(gathered, known)
        return
    offset = int(done.result().base_offset)
    partition = repeat(gathered.partition)
    for ticket, places in gathered.shares:
        behind = offset + len(places)
        ticket.settle(
            places, list(map(_placed, zip(partition, range(offset, behind), strict=False)))
        )
        offset = behind


def _refuse(gathered: _Gathered, error: LakeMQError) -> None:
    for ticket, places in gathered.shares:
        ticket.settle(places, [error] * len(places))
