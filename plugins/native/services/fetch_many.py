"""Reads partitions for one `Fetch` or `FetchMany` call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import (
    InvalidRequest,
    LakeMQError,
    LogTruncated,
    NotLeader,
    OffsetOutOfRange,
    UnknownTopic,
)
from lakemq.broker_core.api.partition_ports import EpochLog
from lakemq.broker_core.api.ports import Broker, PartitionLog
from lakemq.broker_core.api.records.batch import HEADER_BYTES, read_header
from lakemq.broker_core.api.types import CommittedBatch, Offset, Operation, Principal, Resource
from lakemq.plugins.native.config import NativeSettings
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.wire.filtering import Condition, RecordFilter

_PARTITIONS_MAX: Final = 10_000


def check_topic_id(broker: Broker, name: str, topic_id: str) -> None:
    """Raises UnknownTopic when the topic is gone, or another than `topic_id` (if one is given)."""
    topic = broker.topic(name)
    if topic_id and topic_id != topic.topic_id:
        raise UnknownTopic(
            f"topic {name} with id {topic_id} is gone; another of that name has id {topic.topic_id}"
        )


def log_to_read(
    broker: Broker,
    principal: Principal,
    asked: pb.PartitionOffset | pb.TieredSegmentsRequest,
) -> PartitionLog:
    """The log of a partition that the caller may read, and that this node leads or, where that is
    enough, has in sync. Raises NotAuthorized, NotLeader, StaleEpoch, UnknownPartition,
    UnknownTopic."""
    broker.authorize(principal, Operation.READ, Resource("topic", asked.topic))
    check_topic_id(broker, asked.topic, asked.topic_id)
    in_sync = isinstance(asked, pb.PartitionOffset) and asked.follower
    find = broker.readable if in_sync else broker.partition
    return find(asked.topic, asked.partition, asked.leader_epoch)


def check_not_truncated(log: PartitionLog, asked: pb.PartitionOffset) -> None:
    """Raises LogTruncated where the log, before the offset that is asked for, is not the one that
    the client has read (KIP-320)."""
    if not asked.HasField("last_epoch") or not isinstance(log, EpochLog):
        return
    found = log.epoch_end(asked.last_epoch)
    if found.end_offset < asked.offset:
        raise LogTruncated(
            f"partition {asked.partition} of {asked.topic}: what was read before offset "
            f"{asked.offset}, in leader epoch {asked.last_epoch}, is there no more from offset "
            f"{found.end_offset} on: an unclean election has taken it back",
            found.end_offset,
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
    """Protobuf -> filter; None: all records are wanted. Raises InvalidRequest: too many conditions,
    or too long ones."""
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
    """A partition of the call, and the offset that is read next."""

    asked: pb.PartitionOffset
    log: PartitionLog
    offset: Offset
    queued: bool = True

    @property
    def ended(self) -> bool:
        return bool(self.asked.end_offset) and self.offset >= self.asked.end_offset


class _Readers:
    """The partitions of one call; those that may have records, in turn."""

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
        """Until a partition may have records, or `wait_s` has passed."""
        self._woken.clear()
        if not self.ready:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()


class FetchAnswer(NamedTuple):
    """What was read of one partition, or why it is read no further."""

    asked: pb.PartitionOffset
    batches: bytes = b""
    """Whole record batches, back to back; those without a record that is wanted are left out."""
    next_offset: int = 0
    high_watermark: int = 0
    log_start_offset: int = 0
    last_epoch: int = -1
    """Leader epoch of the batch before `next_offset`; -1: it is not known."""
    error: LakeMQError | None = None


class FetchSession:
    """One call: its caller, and what it wants of records."""

    def __init__(
        self,
        broker: Broker,
        settings: NativeSettings,
        principal: Principal,
        request: pb.FetchRequest | pb.FetchManyRequest,
    ) -> None:
        self._broker = broker
        self._principal = principal
        self._bytes_max = min(request.bytes_max or 1024 * 1024, settings.fetch_max_bytes)
        self._wait_s = settings.fetch_wait_ms / 1000
        self._follow = request.follow
        self._filter = filter_of(request.filter)
        self._readers = _Readers()
        self._check_s = monotonic() + self._wait_s
        """When to look next whether partitions that have no records may still be read."""

    async def read(
        self, partitions: Sequence[pb.PartitionOffset], stopping: Callable[[], bool]
    ) -> AsyncGenerator[FetchAnswer, None]:
        """Answers, partitions in turn, until all have been read to their end (`follow`: for ever).
        Nothing is read ahead of the client: the next batches are read when gRPC has taken the last.
        """
        if not 1 <= len(partitions) <= _PARTITIONS_MAX:
            raise InvalidRequest(
                f"partitions has {len(partitions)} entries; it takes 1 to {_PARTITIONS_MAX}"
            )
        readers = self._readers
        try:
            for asked in partitions:
                try:
                    readers.add(_Cursor(asked, self._open(asked), Offset(asked.offset)))
                except LakeMQError as error:
                    yield FetchAnswer(asked, error=error)
            while readers.open and not stopping() and (readers.ready or self._follow):
                async for answer in self._turn():
                    yield answer
        finally:
            readers.close_all()

    def _open(self, asked: pb.PartitionOffset) -> PartitionLog:
        log = log_to_read(self._broker, self._principal, asked)
        check_not_truncated(log, asked)
        return log

    async def _turn(self) -> AsyncGenerator[FetchAnswer, None]:
        """Read one partition, or wait until one may have records."""
        readers = self._readers
        if monotonic() >= self._check_s:
            # A partition without records is not read, so nothing else would notice that it moved,
            # or that the right to read it is gone.
            self._check_s = monotonic() + self._wait_s
            for cursor in list(readers.open):
                if (error := self._ended(cursor)) is not None:
                    readers.close(cursor)
                    yield FetchAnswer(cursor.asked, error=error)
        if not readers.ready:
            await readers.wait(self._wait_s)
            return
        cursor = readers.ready.popleft()
        # Before the read: what becomes readable during it puts the cursor into the queue again.
        cursor.queued = False
        if cursor in readers.open:
            answer = await self._next(cursor)
            if answer is not None:
                yield answer

    def _ended(self, cursor: _Cursor) -> LakeMQError | None:
        """Why a partition may not be read any more: its topic was deleted, or created again, its
        leader is another node, or the caller has lost the right to read it."""
        try:
            if self._open(cursor.asked) is not cursor.log:
                raise UnknownTopic(f"topic {cursor.asked.topic} was created again")
        except LakeMQError as error:
            return error
        return None

    async def _next(self, cursor: _Cursor) -> FetchAnswer | None:
        """What one partition has now; None: nothing."""
        readers, asked = self._readers, cursor.asked
        if cursor.ended:
            readers.close(cursor)
            return None
        try:
            got = await cursor.log.fetch(cursor.offset, bytes_max=self._bytes_max)
            data = await narrowed(until(got.data, asked.end_offset), self._filter)
            # Asked again: the records may have taken long to read.
            log_to_read(self._broker, self._principal, asked)
        except LakeMQError as error:
            readers.close(cursor)
            return FetchAnswer(asked, error=self._leader_knows(asked, error))
        if not got.data:
            return None
        # Also where the filter left nothing: the answer tells the client how far it has been read.
        cursor.offset = got.next_offset
        # There may be more: behind those of the other partitions that wait.
        readers.wake(cursor)
        epoch = cursor.log.last_epoch(got.next_offset) if isinstance(cursor.log, EpochLog) else -1
        return FetchAnswer(
            asked, data, got.next_offset, got.high_watermark, got.log_start_offset, epoch
        )

    def _leader_knows(self, asked: pb.PartitionOffset, error: LakeMQError) -> LakeMQError:
        """What a follower lacks, or no longer has, the leader may have."""
        if asked.follower and isinstance(error, OffsetOutOfRange):
            try:
                self._broker.check_leads(asked.topic, asked.partition, "")
            except NotLeader as elsewhere:
                return elsewhere
        return error
