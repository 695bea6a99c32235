"""Records -> record batches: what arrives in one turn of the loop shares a batch per partition and
level of acks. Nothing is done per record where a batch is one call's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from lakemq.broker_core.api.errors import BatchTooLarge, InvalidRequest, LakeMQError
from lakemq.broker_core.api.ports import AppendTarget, BoundPublish, PublishDone
from lakemq.broker_core.api.records.batch import RECORDS_MAX
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.types import Acks, AppendResult, Columns, Offset, Placed, TopicInfo
from lakemq.broker_core.publishing.joined_columns import joined

Outcomes = list[Placed | LakeMQError]
_RECORD_BYTES = 24
"""Fixed columns of one record, at most (bytes)."""
_HEADER_ROOM_BYTES = 256


class _Whole:
    """The outcomes of one call, for a caller that waits for all of them."""

    __slots__ = ("_future", "_missing", "_outcomes")

    def __init__(self, count: int, future: asyncio.Future[Outcomes]) -> None:
        self._outcomes: list[Any] = [None] * count
        self._missing = count
        self._future = future

    def settle(self, indexes: Sequence[int], outcome: Placed | LakeMQError) -> None:
        """Implements `PublishDone`."""
        if isinstance(outcome, LakeMQError):
            for index in indexes:
                self._outcomes[index] = outcome
        else:
            partition, offset = outcome
            for behind, index in enumerate(indexes):
                self._outcomes[index] = Placed(partition, Offset(offset + behind))
        self._missing -= len(indexes)
        if not (self._missing or self._future.done()):
            self._future.set_result(self._outcomes)


class _Share(NamedTuple):
    """Records of one call that go to one batch."""

    done: PublishDone
    indexes: Sequence[int]
    """Which records of the call they are."""
    columns: Columns


@dataclass(slots=True)
class _Gathered:
    """Records for one log, of one or many calls."""

    log: AppendTarget
    topic: TopicInfo
    partition: int
    acks: Acks
    size_bytes: int = 0
    count: int = 0
    shares: list[_Share] = field(default_factory=list)

    def columns(self, now_ms: int) -> Columns:
        """All of them; those of a single call without a copy."""
        return joined([share.columns for share in self.shares], [now_ms] * len(self.shares))


class Publisher:
    """Gathers and appends. All methods run on the event loop."""

    def __init__(
        self,
        target: Callable[[str, int], AppendTarget],
        now_ms: Callable[[], int],
        leads: Callable[[TopicInfo, int], bool] = lambda topic, partition: True,
    ) -> None:
        """`target`: where the records of a partition go; keyless ones go to one that this node
        `leads`, if it leads any."""
        self._target = target
        self._leads = leads
        self._now_ms = now_ms
        self._gathered: dict[tuple[str, int, Acks], _Gathered] = {}
        self._scheduled = False
        self._turn = 0

    def publish(
        self, topic: TopicInfo, columns: Columns, acks: Acks, partition: int | None
    ) -> asyncio.Future[Outcomes]:
        """`append`, for callers that wait."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcomes] = loop.create_future()
        count = len(columns.values)
        if not count:
            future.set_result([])
            return future
        self.append(topic, columns, acks, partition, _Whole(count, future).settle)
        if self._gathered and not self._scheduled:
            self._scheduled = True
            # Behind whatever else this turn of the loop publishes, which shares the batches.
            loop.call_soon(self.flush)
        return future

    def append(
        self,
        topic: TopicInfo,
        columns: Columns,
        acks: Acks,
        partition: int | None,
        done: PublishDone,
    ) -> None:
        """Gather records, which must not be changed from now on; the caller calls `flush`. `done`
        is told from the answers of logs, and not a turn later."""
        if not columns.values:
            return
        for home, indexes in self._homes(topic, columns, partition).items():
            self._gather(topic, home, columns, indexes, acks, done)

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
    ) -> dict[int, Sequence[int]]:
        """Partition -> places in `columns`; keyless records of one call stay together."""
        count, partitions = len(columns.values), topic.partitions
        if partition is not None or partitions == 1:
            return {partition or 0: range(count)}
        # One partition for a whole call, the next one for the next call (sticky partitioning,
        # KIP-480): small calls still make one batch.
        self._turn += 1
        sticky = self._sticky(topic)
        if columns.keys is None:
            return {sticky: range(count)}
        homes: dict[int, list[int]] = {}
        known: dict[bytes | None, list[int]] = {}  # keys repeat
        for place, key in enumerate(columns.keys):
            places = known.get(key)
            if places is None:
                home = sticky if key is None else partition_of(key, partitions)
                places = known[key] = homes.setdefault(home, [])
            places.append(place)
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
        indexes: Sequence[int],
        acks: Acks,
        done: PublishDone,
    ) -> None:
        count = len(indexes)
        try:
            share = _share(columns, indexes)
            size = _RECORD_BYTES * count + sum(
                sum([len(cell) for cell in column if cell])
                for column in (share.values, share.keys or (), share.headers or ())
            )
        except Exception as error:  # other partitions of this call may be gathered already
            done(indexes, _no_batch(topic, error))
            return
        room = topic.config.batch_max_bytes - _HEADER_ROOM_BYTES
        if size > room or count > RECORDS_MAX:
            self._gather_large(topic, home, columns, indexes, acks, done, room)
            return
        try:
            gathered = self._room_for(topic, home, acks, size, count)
        except LakeMQError as error:  # the other partitions of this call are not touched
            done(indexes, error)
            return
        gathered.size_bytes += size
        gathered.count += count
        gathered.shares.append(_Share(done, indexes, share))

    def _room_for(
        self, topic: TopicInfo, home: int, acks: Acks, size: int, count: int
    ) -> _Gathered:
        """The batch under construction, sent off first if `count` more records of `size` bytes
        don't fit."""
        room = topic.config.batch_max_bytes - _HEADER_ROOM_BYTES
        key = (topic.topic_id, home, acks)
        gathered = self._gathered.get(key)
        if gathered is not None and (
            gathered.size_bytes + size > room or gathered.count + count > RECORDS_MAX
        ):
            # The full batch goes first, so that records of one partition stay in the order of the
            # calls.
            self._send(self._gathered.pop(key))
            gathered = None
        if gathered is None:
            log = self._target(topic.name, home)
            gathered = self._gathered[key] = _Gathered(log, topic, home, acks)
        return gathered

    def _gather_large(
        self,
        topic: TopicInfo,
        home: int,
        columns: Columns,
        indexes: Sequence[int],
        acks: Acks,
        done: PublishDone,
        room: int,
    ) -> None:
        """More than one batch: halve until it fits; a single record that doesn't is refused."""
        if len(indexes) == 1:
            error = BatchTooLarge(f"a record for topic {topic.name} is larger than {room} bytes")
            done(indexes, error)
            return
        middle = len(indexes) // 2
        for half in (indexes[:middle], indexes[middle:]):
            self._gather(topic, home, columns, half, acks, done)

    def flush(self) -> None:
        """Append all that was gathered."""
        self._scheduled = False
        if self._gathered:
            # Exchanged first: a log may answer at once, and its callback may publish again.
            gathered, self._gathered = self._gathered, {}
            for each in gathered.values():
                self._send(each)

    def _send(self, gathered: _Gathered) -> None:
        try:
            now_ms = self._now_ms()
            gathered.log.append_records(
                gathered.columns(now_ms), now_ms, gathered.acks, partial(_settle, gathered)
            )
        except LakeMQError as error:
            _refuse(gathered, error)
        except Exception as error:  # columns that no batch holds must not take others with them
            _refuse(gathered, _no_batch(gathered.topic, error))


def _no_batch(topic: TopicInfo, error: Exception) -> LakeMQError:
    return InvalidRequest(f"topic {topic.name}: {error}")


def _share(columns: Columns, indexes: Sequence[int]) -> Columns:
    """The records at `indexes`; all of them without a copy."""
    if len(indexes) == len(columns.values):
        return columns
    values, keys, headers, times = columns
    return Columns(
        [values[index] for index in indexes],
        None if keys is None else [keys[index] for index in indexes],
        None if headers is None else [headers[index] for index in indexes],
        None if times is None else [times[index] for index in indexes],
    )


def refuse(publish: BoundPublish, error: LakeMQError) -> None:
    """The same error for all of its records."""
    publish.done(range(len(publish.columns.values)), error)


def answer_with(future: asyncio.Future[Outcomes], publish: BoundPublish) -> None:
    """Have `publish` answered with what the future gives."""

    def settle(done: asyncio.Future[Outcomes]) -> None:
        if done.cancelled():
            error: BaseException | None = LakeMQError("the append was cancelled")
        else:
            error = done.exception()
        if error is None:
            error = _tell_each(publish, done.result())
            if error is None:
                return
        known = error if isinstance(error, LakeMQError) else LakeMQError(repr(error))
        refuse(publish, known)

    future.add_done_callback(settle)


def _tell_each(publish: BoundPublish, outcomes: Outcomes) -> LakeMQError | None:
    count = len(publish.columns.values)
    if len(outcomes) != count:
        return LakeMQError(f"{len(outcomes)} outcomes for {count} records")
    for index, outcome in enumerate(outcomes):
        publish.done((index,), outcome)
    return None


def _settle(gathered: _Gathered, outcome: AppendResult | LakeMQError) -> None:
    if isinstance(outcome, LakeMQError):
        _refuse(gathered, outcome)
        return
    offset = int(outcome.base_offset)
    for done, indexes, _ in gathered.shares:
        done(indexes, Placed(gathered.partition, Offset(offset)))
        offset += len(indexes)


def _refuse(gathered: _Gathered, error: LakeMQError) -> None:
    for done, indexes, _ in gathered.shares:
        done(indexes, error)
