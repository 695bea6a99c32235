"""Ports of one partition: its log, the ways to append to it and to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    CommittedBatch,
    FetchResult,
    Offset,
    PartitionStatus,
)

if TYPE_CHECKING:  # pure modules take types from here
    import asyncio

Tap = Callable[[Sequence[CommittedBatch]], None]
"""Called with batches that became readable, in offset order, once per flush; must neither block
nor raise."""


AppendDone = Callable[[AppendResult | LakeMQError], None]
"""Called with what became of an append."""


class AppendTarget(Protocol):
    """What takes records for a partition: its log, or the way to the node that leads it."""

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        """Take one batch whose header, body CRC and size the caller has checked. Never raises: the
        future fails."""

    def append_records(self, columns: Columns, now_ms: int, acks: Acks, done: AppendDone) -> None:
        """Take records, of which batches are made. `now_ms`: their timestamp, where they have none.

        `done` gets the outcome, once, on the event loop; it may be called before this returns.
        Raises ValueError for columns that no batch holds, unless `done` is told so.
        """


class PartitionLog(AppendTarget, Protocol):
    """The log of one partition: record batches in the order of their offsets."""

    @property
    def log_start_offset(self) -> Offset:
        """First offset that is still there."""

    @property
    def high_watermark(self) -> Offset:
        """Readers see offsets below it."""

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record gets."""

    def status(self) -> PartitionStatus:
        """State, offsets and size, for operators."""

    def append(self, batch: bytes, header: BatchHeader, acks: Acks) -> asyncio.Future[AppendResult]:
        """Take one batch whose header, body CRC and size the caller has checked.

        A topic's `batch_max_bytes` is asked of producers when their batch comes; what was taken
        then (staged, scheduled, a dead letter) is appended whatever the limit has become.

        The log assigns offsets in the order of calls and stamps the header. Never raises: the
        future fails with StorageFenced, StorageFull, OutOfOrderSequence, ProducerFenced, or
        Unavailable when too much waits for the disk or the log is closed.
        """

    def append_records(self, columns: Columns, now_ms: int, acks: Acks, done: AppendDone) -> None:
        """Make one batch of records and take it as `append` does. `now_ms`: their timestamp, where
        they have none.

        `done` gets the outcome, once, on the event loop, after taps got the batch; it may be called
        before this returns. Raises ValueError for columns that no batch holds.
        """

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        """Whole batches from `offset`, at least one if one is there even when it is larger than
        `bytes_max`. At the high watermark, waits up to `wait_ms` for more, then answers empty.
        Raises OffsetOutOfRange (below the start, above the high watermark) or CorruptLog.
        """

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset:
        """First offset whose record is not older; the high watermark if there is none."""

    async def delete_records(self, before: Offset) -> Offset:
        """Move the log's start forward to `before`, durably; returns where it is now. Never back.

        Raises OffsetOutOfRange (above the high watermark), Unavailable, StorageFenced.
        """

    def tap(self, tap: Tap) -> Callable[[], None]:
        """Call `tap` with every batch that becomes readable from now on; returns its removal."""


class EpochEnd(NamedTuple):
    """Where the records of a leader epoch end in one log."""

    epoch: int
    """The greatest epoch of the log that is not above the one asked for; -1: it has none."""
    end_offset: Offset
    """Offset behind the last record of that epoch (KIP-279)."""


@runtime_checkable
class EpochLog(Protocol):
    """A log that knows in which leader epoch each of its batches was appended."""

    def last_epoch(self, offset: Offset | None = None) -> int:
        """Leader epoch of the last batch below `offset` (None: the log's end); -1 without one."""

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Where an epoch ends in this log, for who asks whether what it has, or has read, has
        diverged. Without such an epoch: (-1, the log's start)."""


class Wanted(NamedTuple):
    """Which batches of a partition a reader wants: the node that leads it may leave out those that
    a filter there finds of no use to this node."""

    filter: str
    """Name by which `Broker.filter_batches` knows it."""
    number: int
    """What the filter must know of this node, if it is to leave anything out: it counts what nodes
    tell each other, in whatever way the filter's owner has."""


BatchFilter = Callable[[Peer, int, CommittedBatch], bool]
"""(node that reads, `Wanted.number`, batch) -> whether the node wants the batch, or may want it."""


class PartitionReader(Protocol):
    """Reads what is committed of one partition, on whichever node it is. For the broker's own use:
    rights are not asked for. Another topic of the same name is not read: UnknownTopic.

    Where no node answers as the leader, calls go on for some seconds, so a failover is not seen;
    then they raise Unavailable.
    """

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        """As `PartitionLog.fetch`, from this node's replica if it is in sync, else from the leader,
        which gives 1 MiB at most, or one batch. The bounds in the answer are those of the replica
        that gave it, which may know less than another one.

        Raises OffsetOutOfRange for what is below the log's start, and for what lies above its end:
        records that were read before are lost then (an unclean election, a lost disk).
        """

    async def bounds(self) -> tuple[Offset, Offset]:
        """Where the log starts, and its high watermark: the leader's word."""

    async def log_end(self) -> Offset:
        """Behind the last record that the leader has, committed or not: its word. A leader of an
        older build tells its high watermark."""

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset:
        """As `PartitionLog.offset_for_timestamp`: the leader's word."""
