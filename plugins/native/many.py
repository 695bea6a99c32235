"""One fetch stream over many partitions: what the gRPC edge yields for `FetchMany`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from broker_core.api.errors import InvalidRequest, LakeMQError, UnknownTopic
from broker_core.api.ports import Broker, PartitionLog
from broker_core.api.record_batch import HEADER_BYTES, read_header
from broker_core.api.types import CommittedBatch, Offset, Operation, Principal, Resource
from plugins.native import native_pb2 as pb
from plugins.native.config import NativeSettings
from plugins.native.convert import error_message
from plugins.native.leading import Leaders
from plugins.native.sdk.filtering import Condition, RecordFilter

_PARTITIONS_MAX: Final = 10_000


def check_topic_id(broker: Broker, name: str, topic_id: str) -> None:
    """Raises UnknownTopic when the topic is gone, or another than `topic_id` (if one is given)."""
    topic = broker.topic(name)
    if topic_id and topic_id != topic.topic_id:
        raise UnknownTopic(
            f"topic {name} with id {topic_id} is gone; another of that name has id {topic.topic_id}"
        )


def until(data: bytes, end_offset: int) -> bytes:
    """Leave out whole batches at and behind `end_offset`, if one is given."""
    position = 0
    while end_offset and position + HEADER_BYTES <= len(data):
        header = read_header(data, position)
        if header.base_offset >= end_offset:
            return data[:position]
        position += header.total_bytes
    return data


def filter_of(message: pb.Filter) -> RecordFilter | None:
    """Raises InvalidRequest: too many conditions, or too long ones."""
    if not message.all:
        return None
    return RecordFilter(
        tuple(Condition(each.header, each.value, each.prefix) for each in message.all)
    )


async def narrowed(data: bytes, wanted: RecordFilter | None) -> bytes:
    """Only the batches that hold a record that is wanted. Looking inside is done in a thread:
    batches may be large, and compressed."""
    if wanted is None or not data:
        return data
    return await asyncio.to_thread(wanted.batches, data)


@dataclass(eq=False, slots=True)
class _Cursor:
    """Where the stream stands in one partition."""

    wanted: pb.PartitionOffset
    log: PartitionLog
    offset: Offset
    queued: bool = True

    @property
    def ended(self) -> bool:
        return bool(self.wanted.end_offset) and self.offset >= self.wanted.end_offset


class _Readers:
    """The partitions of one stream; those that may have something, in turn."""

    def __init__(self) -> None:
        self.ready: deque[_Cursor] = deque()
        self.open: set[_Cursor] = set()
        self._taps: dict[_Cursor, Callable[[], None]] = {}
        self._woken = asyncio.Event()

    def add(self, cursor: _Cursor) -> None:
        self.open.add(cursor)
        self.ready.append(cursor)

        def readable(_: Sequence[CommittedBatch]) -> None:
            self.wake(cursor)

        self._taps[cursor] = cursor.log.tap(readable)

    def wake(self, cursor: _Cursor) -> None:
        if not cursor.queued and cursor in self.open:
            cursor.queued = True
            self.ready.append(cursor)
            self._woken.set()

    def close(self, cursor: _Cursor) -> None:
        self.open.discard(cursor)
        self._taps.pop(cursor)()

    def close_all(self) -> None:
        for cursor in list(self.open):
            self.close(cursor)

    async def wait(self, wait_s: float) -> None:
        """Until a partition may have something, or time is over."""
        self._woken.clear()
        if not self.ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()


async def read_many(
    broker: Broker,
    leaders: Leaders,
    request: pb.FetchManyRequest,
    principal: Principal,
    settings: NativeSettings,
    stopping: Callable[[], bool],
) -> AsyncIterator[pb.FetchManyResponse]:
    """Answers, partitions in turn. Nothing is read ahead of the client: the next batch is read
    when gRPC has taken the last. A partition that fails is told in place and left out.
    """
    if not 1 <= len(request.partitions) <= _PARTITIONS_MAX:
        raise InvalidRequest(
            f"partitions has {len(request.partitions)} entries; it takes 1 to {_PARTITIONS_MAX}"
        )
    bytes_max = min(request.bytes_max or 1024 * 1024, settings.fetch_bytes_max)
    record_filter = filter_of(request.filter)
    readers = _Readers()
    try:
        for wanted in request.partitions:
            try:
                broker.authorize(principal, Operation.READ, Resource("topic", wanted.topic))
                readers.add(_open(broker, leaders, wanted))
            except LakeMQError as error:
                yield _failed(wanted, error)
        while readers.open and not stopping():
            if not readers.ready:
                if not request.follow:
                    return
                await readers.wait(settings.fetch_wait_ms / 1000)
                for answer in _gone(broker, leaders, readers):
                    yield answer
                continue
            cursor = readers.ready.popleft()
            cursor.queued = False
            if cursor in readers.open:
                may = partial(_check, broker, leaders, principal, cursor.wanted)
                found = await _next(cursor, readers, bytes_max, record_filter, may)
                if found is not None:
                    yield found
    finally:
        readers.close_all()


def _check(
    broker: Broker, leaders: Leaders, principal: Principal, wanted: pb.PartitionOffset
) -> None:
    """Raises NotAuthorized, NotLeader, StaleEpoch."""
    broker.authorize(principal, Operation.READ, Resource("topic", wanted.topic))
    leaders.check(wanted.topic, wanted.partition, wanted.leader_epoch)


def _open(broker: Broker, leaders: Leaders, wanted: pb.PartitionOffset) -> _Cursor:
    check_topic_id(broker, wanted.topic, wanted.topic_id)
    log = broker.partition(wanted.topic, wanted.partition)
    leaders.check(wanted.topic, wanted.partition, wanted.leader_epoch)
    return _Cursor(wanted, log, Offset(wanted.offset))


async def _next(
    cursor: _Cursor,
    readers: _Readers,
    bytes_max: int,
    record_filter: RecordFilter | None,
    check: Callable[[], None],
) -> pb.FetchManyResponse | None:
    """What one partition has now; None: nothing. Its leadership, or the right to it, may have ended
    meanwhile."""
    wanted = cursor.wanted
    try:
        check()
        got = None if cursor.ended else await cursor.log.fetch(cursor.offset, bytes_max=bytes_max)
        data = await narrowed(until(got.data, wanted.end_offset), record_filter) if got else b""
    except LakeMQError as error:
        readers.close(cursor)
        return _failed(wanted, error)
    if got is None:
        readers.close(cursor)
        return None
    if not got.data:
        return None
    cursor.offset = got.next_offset
    readers.wake(cursor)
    return pb.FetchManyResponse(
        topic=wanted.topic,
        partition=wanted.partition,
        fetched=pb.FetchResponse(
            batches=data,
            next_offset=got.next_offset,
            high_watermark=got.high_watermark,
            log_start_offset=got.log_start_offset,
        ),
    )


def _gone(broker: Broker, leaders: Leaders, readers: _Readers) -> list[pb.FetchManyResponse]:
    """Partitions whose topic was deleted, or created again, while the stream waited."""
    found = []
    for cursor in list(readers.open):
        wanted = cursor.wanted
        try:
            check_topic_id(broker, wanted.topic, wanted.topic_id)
            if broker.partition(wanted.topic, wanted.partition) is not cursor.log:
                raise UnknownTopic(f"topic {wanted.topic} was created again")
            leaders.check(wanted.topic, wanted.partition, wanted.leader_epoch)
        except LakeMQError as error:
            readers.close(cursor)
            found.append(_failed(wanted, error))
    return found


def _failed(wanted: pb.PartitionOffset, error: LakeMQError) -> pb.FetchManyResponse:
    return pb.FetchManyResponse(
        topic=wanted.topic, partition=wanted.partition, error=error_message(error)
    )
