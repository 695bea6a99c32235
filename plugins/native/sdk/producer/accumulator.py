"""What an idempotent producer sends next: records in, requests out.

Per partition one batch is in flight; records that arrive meanwhile make up the next one, so batches
grow with load and order holds through every retry. A batch keeps its sequence number until it has
a final answer (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

from lakemq.broker_core.api.errors import (
    BatchTooLarge,
    InvalidRequest,
    LakeMQError,
    OutcomeUnknown,
)
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    RECORDS_MAX,
    pack_header,
    read_header,
)
from lakemq.broker_core.api.types import Acks, Columns, Compression
from lakemq.plugins.native.sdk.net.calls import columns_of
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers
from lakemq.plugins.native.sdk.producer.checking import encoded
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata

_RECORD_OVERHEAD_BYTES: Final = 16
BATCH_MAX_BYTES: Final = 1 << 40
"""Where nothing is known of a topic: the broker decides."""


class PendingRecord:
    """Stands for one record until its outcome is known. `outcome` is set exactly once."""

    __slots__ = ("bytes", "deadline_ms", "future", "outcome", "record")

    def __init__(self, record: NewRecord, deadline_ms: int, future: Any = None) -> None:
        value, key, headers, _ = record
        self.record = record
        self.deadline_ms = deadline_ms
        self.future = future
        """The caller's own; not looked at here."""
        size = _RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += sum(len(name) + len(cell or b"") + 6 for name, cell in headers)
        self.bytes = size
        self.outcome: RecordMetadata | LakeMQError | None = None


class PendingBlock:
    """Stands for columns of records that make up a batch of their own."""

    __slots__ = ("bytes", "columns", "deadline_ms", "future", "outcome")

    def __init__(self, columns: Columns, deadline_ms: int, future: Any = None) -> None:
        self.columns = columns
        self.deadline_ms = deadline_ms
        self.future = future
        self.bytes = column_bytes(columns)
        self.outcome: RecordMetadata | LakeMQError | None = None
        """Of the first record."""


def column_bytes(columns: Columns) -> int:
    """About what the records take in a batch."""
    blobs = (columns.values, columns.keys, columns.headers)
    return len(columns.values) * _RECORD_OVERHEAD_BYTES + sum(
        len(cell) for blob in blobs if blob is not None for cell in blob if cell is not None
    )


def cut(columns: Columns, bytes_max: int) -> Iterator[Columns]:
    """Columns of about `bytes_max` each, and of as many records as a batch takes, in order."""
    count, size = len(columns.values), column_bytes(columns)
    step = min(max(1, count * bytes_max // max(size, 1)), RECORDS_MAX)
    for first in range(0, count, step):
        yield Columns(*(None if each is None else each[first : first + step] for each in columns))  # type: ignore[arg-type]  # `values` is never None


@dataclass(slots=True)
class ProducerBatch:
    """One batch in flight: of single records, or of one block."""

    request_id: int
    topic: str
    partition: int
    data: bytes
    pending: list[PendingRecord] | list[PendingBlock]
    timestamps_ms: list[int]
    count: int
    buffered_bytes: int
    attempts: int = 0
    address: str = ""
    """Where it was sent last."""
    leader_epoch: int = 0
    producer_epoch: int = 0
    restarted: bool = False
    """Its producer's numbers were restarted for it."""
    maybe_appended: bool = False
    """An attempt had no answer, or one that leaves open whether the batch was appended."""


@dataclass(slots=True)
class _Partition:
    waiting: deque[PendingRecord | PendingBlock] = field(default_factory=deque)
    in_flight: ProducerBatch | None = None


class RecordAccumulator:
    """The state of one producer. Times are milliseconds of the caller's clock."""

    def __init__(
        self, sequences: SequenceNumbers, *, batch_max_bytes: int, compression: Compression
    ) -> None:
        self.sequences = sequences
        self.buffered_bytes = 0
        """Bytes of records without an outcome."""
        self.rejected: list[PendingRecord | PendingBlock] = []
        """See `drain_rejected`."""
        self.bytes_max: dict[str, int] = {}
        """Topic -> the largest batch that it takes."""
        self._batch_max_bytes = batch_max_bytes
        self._compression = compression
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._in_flight: dict[int, ProducerBatch] = {}
        self._next_request_id = 1

    def add(self, topic: str, partition: int, item: PendingRecord | PendingBlock) -> None:
        """Queue one record, or one block of them."""
        place = self._partitions.get((topic, partition))
        if place is None:
            place = self._partitions[topic, partition] = _Partition()
        place.waiting.append(item)
        self.buffered_bytes += item.bytes

    @property
    def idle(self) -> bool:
        """Whether every record has its outcome."""
        return not self.buffered_bytes

    def ready(self, now_ms: int) -> Iterator[ProducerBatch]:
        """Batches to send now: one for every partition that has records and no batch in flight."""
        for (topic, number), partition in self._partitions.items():
            # A loop, for a batch that is rejected leaves the partition free for the next one.
            while partition.in_flight is None and partition.waiting:
                batch = self._start(topic, number, partition, now_ms)
                if batch is not None:
                    yield batch

    def drain_rejected(self) -> list[PendingRecord | PendingBlock]:
        """Take what no batch can be made of, each with its outcome."""
        rejected, self.rejected = self.rejected, []
        return rejected

    def _start(
        self, topic: str, number: int, partition: _Partition, now_ms: int
    ) -> ProducerBatch | None:
        """None: what came next is rejected."""
        pending: list[PendingRecord] | list[PendingBlock]
        first = partition.waiting[0]
        if isinstance(first, PendingBlock):
            partition.waiting.popleft()
            pending, columns, size = [first], first.columns, first.bytes
        else:
            pending, size = self._gather(partition.waiting, self._record_bytes_max(topic))
            columns = columns_of([item.record for item in pending], now_ms)
        # Peeked, not used up: a batch that can't be encoded must leave no gap in the sequence,
        # which the broker would refuse as OutOfOrderSequence.
        stamp = self.sequences.next(topic, number)
        try:
            data = encoded(columns, now_ms=now_ms, producer=stamp, compression=self._compression)
            # A block that is too large, or one record: `_gather` keeps several below the limit. The
            # broker would refuse it anyway; so it costs no round trip.
            if len(data) > self.bytes_max.get(topic, BATCH_MAX_BYTES):
                raise BatchTooLarge(
                    f"a batch of {len(data)} bytes; topic {topic} takes {self.bytes_max[topic]}"
                )
        except InvalidRequest as error:
            for item in pending:
                item.outcome = error
            self.rejected += pending
            self.buffered_bytes -= size
            return None
        batch = ProducerBatch(
            self._next_request_id, topic, number, data, pending,
            list(columns.timestamps_ms or (now_ms,)), len(columns.values), size,
        )  # fmt: skip
        batch.producer_epoch = stamp.epoch
        self._next_request_id += 1
        partition.in_flight = self._in_flight[batch.request_id] = batch
        return batch

    def _record_bytes_max(self, topic: str) -> int:
        """Bytes of single records in one batch: `PendingRecord.bytes` is never below what a record
        takes when it is encoded."""
        return min(self._batch_max_bytes, self.bytes_max.get(topic, BATCH_MAX_BYTES) - HEADER_BYTES)

    def _gather(
        self, waiting: deque[PendingRecord | PendingBlock], bytes_max: int
    ) -> tuple[list[PendingRecord], int]:
        """Single records from the front, as many as make a batch; and their bytes."""
        pending: list[PendingRecord] = []
        size = 0
        while waiting and len(pending) < RECORDS_MAX:
            item = waiting[0]
            # A block ends the batch: its columns become a batch of their own, in order. `pending
            # and`: a single record that is too large must still leave the queue, to be rejected.
            if isinstance(item, PendingBlock) or (pending and size + item.bytes > bytes_max):
                break
            size += item.bytes
            pending.append(item)
            waiting.popleft()
        return pending, size

    def in_flight(self) -> list[ProducerBatch]:
        """All batches without an answer: to be sent again on a new connection, as they are."""
        return list(self._in_flight.values())

    def batch(self, request_id: int) -> ProducerBatch | None:
        """The batch in flight with that request id; None: it has been settled."""
        return self._in_flight.get(request_id)

    def last(self) -> list[PendingRecord | PendingBlock]:
        """The last of every partition: when they have an outcome, all have that are there now."""
        found: list[PendingRecord | PendingBlock] = []
        for partition in self._partitions.values():
            if partition.waiting:
                found.append(partition.waiting[-1])
            elif partition.in_flight is not None:
                found.append(partition.in_flight.pending[-1])
        return found

    def oldest_deadline_ms(self) -> int | None:
        """Deadline of the oldest record without an outcome (ms); None if there are none."""
        firsts = [
            partition.in_flight.pending[0] if partition.in_flight else partition.waiting[0]
            for partition in self._partitions.values()
            # The oldest of each partition: in flight first, then by the time of the call.
            if partition.in_flight or partition.waiting
        ]
        return min((each.deadline_ms for each in firsts), default=None)

    def appended(
        self, batch: ProducerBatch, base_offset: int, acks: Acks
    ) -> list[PendingRecord] | list[PendingBlock]:
        """The broker has the batch; its pending, with their outcome."""
        outcomes = map(
            RecordMetadata, repeat(batch.topic), repeat(batch.partition),
            range(base_offset, base_offset + batch.count), batch.timestamps_ms, repeat(acks),
        )  # fmt: skip
        pending: Sequence[PendingRecord | PendingBlock] = batch.pending
        for item, outcome in zip(pending, outcomes, strict=False):  # a block has but one
            item.outcome = outcome
        # Where the topic was created again since, its numbers restarted: these records went to the
        # old one.
        if not self.is_outdated(batch):
            self.sequences.advance(batch.topic, batch.partition, batch.count)
        return self._close(batch)

    def is_outdated(self, batch: ProducerBatch) -> bool:
        """Whether its numbers are older than the last `restart` of its topic's."""
        return batch.producer_epoch != self.sequences.epoch_of(batch.topic)

    def renumber(self, batch: ProducerBatch) -> None:
        """Give a batch that was surely not taken the numbers that count now."""
        stamp = self.sequences.next(batch.topic, batch.partition)
        header = read_header(batch.data)._replace(
            producer_epoch=stamp.epoch, base_sequence=stamp.base_sequence
        )
        # Only the header changes; the body, which may be compressed, stays as it is.
        batch.data = pack_header(header) + batch.data[HEADER_BYTES:]
        batch.producer_epoch = stamp.epoch

    def refused(
        self, batch: ProducerBatch, error: LakeMQError
    ) -> list[PendingRecord] | list[PendingBlock]:
        """The broker did not take this attempt, and there will be no other."""
        if batch.maybe_appended:
            # An earlier attempt may be stored: with its numbers, the next batch might pass for a
            # repetition and be acknowledged without being stored. A new epoch has numbers of its
            # own.
            error = OutcomeUnknown(f"an attempt may be stored; the last was refused: {error}")
            if not self.is_outdated(batch):
                self.sequences.restart(batch.topic)
        for item in batch.pending:
            item.outcome = error
        return self._close(batch)

    def _close(self, batch: ProducerBatch) -> list[PendingRecord] | list[PendingBlock]:
        # Only now may the next batch of the partition go out: with two in flight, a retry of the
        # first would come behind the second.
        del self._in_flight[batch.request_id]
        self._partitions[batch.topic, batch.partition].in_flight = None
        self.buffered_bytes -= batch.buffered_bytes
        return batch.pending

    def fail_all(self, error: LakeMQError) -> list[PendingRecord | PendingBlock]:
        """Give up on everything, sent or not."""
        pending: list[PendingRecord | PendingBlock] = []
        for batch in self._in_flight.values():
            pending += batch.pending
        for partition in self._partitions.values():
            pending += partition.waiting
        for item in pending:
            item.outcome = error
        self._partitions.clear()
        self._in_flight.clear()
        self.buffered_bytes = 0
        return pending
