"""What an idempotent producer sends next: records in, requests out.

Per partition one batch is in flight; records that arrive meanwhile make up the next one, so batches
grow with load and order holds through every retry. A batch keeps its sequence number until it has
a final answer (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lakemq.broker_core.api.errors import (
    BatchTooLarge,
    InvalidRequest,
    LakeMQError,
    OutcomeUnknown,
)
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    pack_header,
    read_header,
)
from lakemq.broker_core.api.types import Acks, Compression
from lakemq.plugins.native.sdk.net.sequencing import SequenceNumbers
from lakemq.plugins.native.sdk.producer.checking import encoded
from lakemq.plugins.native.sdk.producer.pending import (
    RECORD_OVERHEAD_BYTES,
    Appended,
    Given,
    Pending,
    PendingBlock,
    PendingRecords,
    record_bytes,
)
from lakemq.plugins.native.sdk.types import NewRecord

BATCH_MAX_BYTES: Final = 1 << 40
"""Where nothing is known of a topic: the broker decides."""


@dataclass(slots=True)
class ProducerBatch:
    """One batch in flight: of single records, or of one block."""

    request_id: int
    topic: str
    partition: int
    data: bytes
    pending: Pending
    timestamps_ms: Sequence[int]
    count: int
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
    waiting: deque[Pending] = field(default_factory=deque)
    filling: PendingRecords | None = None
    """The last of those that wait, if it may take more records."""
    in_flight: ProducerBatch | None = None


class RecordAccumulator:
    """The state of one producer. Times are milliseconds of the caller's clock."""

    def __init__(
        self,
        sequences: SequenceNumbers,
        *,
        batch_max_bytes: int,
        buffer_max_bytes: int,
        compression: Compression,
    ) -> None:
        self.sequences = sequences
        self.buffered_bytes = 0
        """Bytes of records without an outcome."""
        self.open: dict[str, PendingRecords] = {}
        """See `take`; topics whose records, if they have no key, go there until the next flush."""
        self.rejected: list[tuple[Pending, InvalidRequest]] = []
        """See `drain_rejected`."""
        self.bytes_max: dict[str, int] = {}
        """Topic -> the largest batch that it takes."""
        self._batch_max_bytes = batch_max_bytes
        self._buffer_max_bytes = buffer_max_bytes
        self._compression = compression
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._in_flight: dict[int, ProducerBatch] = {}
        self._next_request_id = 1

    def take(self, topic: Any, record: object) -> PendingRecords | None:
        """Queue one record behind the last, as most can be: a value alone, and the buffer has room
        for more. What it is the last of; None: it has to be looked at, and `add`ed."""
        filling = self.open.get(topic)
        if filling is None or type(record) is not NewRecord:
            return None
        value, key, headers, timestamp_ms = record
        if type(value) is not bytes or key is not None or headers or timestamp_ms is not None:
            return None
        size = RECORD_OVERHEAD_BYTES + len(value)
        buffered = self.buffered_bytes + size
        if buffered >= self._buffer_max_bytes or not filling.add_value(value, size):
            return None
        self.buffered_bytes = buffered
        return filling

    def add(self, topic: str, partition: int, record: Given, deadline_ms: int) -> PendingRecords:
        """Queue one record; what it is the last of."""
        value, key, headers, _ = record
        # Most records, without a call.
        if value is not None and key is None and not headers:
            size = RECORD_OVERHEAD_BYTES + len(value)
        else:
            size = record_bytes(record)
        self.buffered_bytes += size
        place = self._partitions.get((topic, partition)) or self._new_partition(topic, partition)
        filling = place.filling
        if filling is None or not filling.add(record, size):
            place.filling = filling = PendingRecords(self._record_bytes_max(topic), deadline_ms)
            filling.add(record, size)
            place.waiting.append(filling)
            self.open.pop(topic, None)
        return filling

    def add_block(self, topic: str, partition: int, block: PendingBlock) -> None:
        """Queue columns of records."""
        place = self._partitions.get((topic, partition)) or self._new_partition(topic, partition)
        # Its columns are a batch of their own; records that come later go behind it.
        place.filling = None
        self.open.pop(topic, None)
        place.waiting.append(block)
        self.buffered_bytes += block.bytes

    def _new_partition(self, topic: str, partition: int) -> _Partition:
        made = self._partitions[topic, partition] = _Partition()
        return made

    @property
    def idle(self) -> bool:
        """Whether every record has its outcome."""
        return not self.buffered_bytes

    def ready(self, now_ms: int) -> Iterator[ProducerBatch]:
        """Batches to send now: one for every partition that has records and no batch in flight."""
        self.open.clear()
        for (topic, number), partition in self._partitions.items():
            # A loop, for a batch that is rejected leaves the partition free for the next one.
            while partition.in_flight is None and partition.waiting:
                batch = self._start(topic, number, partition, now_ms)
                if batch is not None:
                    yield batch

    def drain_rejected(self) -> list[tuple[Pending, InvalidRequest]]:
        """Take what no batch can be made of, and why."""
        rejected, self.rejected = self.rejected, []
        return rejected

    def _start(
        self, topic: str, number: int, partition: _Partition, now_ms: int
    ) -> ProducerBatch | None:
        """None: what came next is rejected."""
        pending = partition.waiting.popleft()
        if pending is partition.filling:
            partition.filling = None
        columns = pending.columns(now_ms)
        # Peeked, not used up: a batch that can't be encoded must leave no gap in the sequence,
        # which the broker would refuse as OutOfOrderSequence.
        stamp = self.sequences.next(topic, number)
        try:
            data = encoded(columns, now_ms=now_ms, producer=stamp, compression=self._compression)
            # A block that is too large, or one record: several are kept below the limit. The broker
            # would refuse it anyway; so it costs no round trip.
            if len(data) > self.bytes_max.get(topic, BATCH_MAX_BYTES):
                raise BatchTooLarge(
                    f"a batch of {len(data)} bytes; topic {topic} takes {self.bytes_max[topic]}"
                )
        except InvalidRequest as error:
            self.rejected.append((pending, error))
            self.buffered_bytes -= pending.bytes
            return None
        batch = ProducerBatch(
            self._next_request_id, topic, number, data, pending,
            columns.timestamps_ms or [now_ms] * pending.count, pending.count,
        )  # fmt: skip
        batch.producer_epoch = stamp.epoch
        self._next_request_id += 1
        partition.in_flight = self._in_flight[batch.request_id] = batch
        return batch

    def _record_bytes_max(self, topic: str) -> int:
        """Bytes of single records in one batch: `record_bytes` is never below what a record takes
        when it is encoded."""
        return min(self._batch_max_bytes, self.bytes_max.get(topic, BATCH_MAX_BYTES) - HEADER_BYTES)

    def in_flight(self) -> list[ProducerBatch]:
        """All batches without an answer: to be sent again on a new connection, as they are."""
        return list(self._in_flight.values())

    def batch(self, request_id: int) -> ProducerBatch | None:
        """The batch in flight with that request id; None: it has been settled."""
        return self._in_flight.get(request_id)

    def last(self) -> list[Pending]:
        """The last of every partition: when they have an outcome, all have that are there now."""
        found: list[Pending] = []
        for partition in self._partitions.values():
            if partition.waiting:
                found.append(partition.waiting[-1])
            elif partition.in_flight is not None:
                found.append(partition.in_flight.pending)
        return found

    def oldest_deadline_ms(self) -> int | None:
        """Deadline of the oldest record without an outcome (ms); None if there are none."""
        firsts = [
            partition.in_flight.pending if partition.in_flight else partition.waiting[0]
            for partition in self._partitions.values()
            # The oldest of each partition: in flight first, then by the time of the call.
            if partition.in_flight or partition.waiting
        ]
        return min((each.deadline_ms for each in firsts), default=None)

    def appended(self, batch: ProducerBatch, base_offset: int, acks: Acks) -> Appended:
        """The broker has the batch; the outcome of its records."""
        # Where the topic was created again since, its numbers restarted: these records went to the
        # old one.
        if not self.is_outdated(batch):
            self.sequences.advance(batch.topic, batch.partition, batch.count)
        self._close(batch)
        return Appended(batch.topic, batch.partition, base_offset, batch.timestamps_ms, acks)

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

    def refused(self, batch: ProducerBatch, error: LakeMQError) -> LakeMQError:
        """The broker did not take this attempt, and there will be no other; what its records fail
        with."""
        if batch.maybe_appended:
            # An earlier attempt may be stored: with its numbers, the next batch might pass for a
            # repetition and be acknowledged without being stored. A new epoch has numbers of its
            # own.
            error = OutcomeUnknown(f"an attempt may be stored; the last was refused: {error}")
            if not self.is_outdated(batch):
                self.sequences.restart(batch.topic)
        self._close(batch)
        return error

    def _close(self, batch: ProducerBatch) -> None:
        # Only now may the next batch of the partition go out: with two in flight, a retry of the
        # first would come behind the second.
        del self._in_flight[batch.request_id]
        self._partitions[batch.topic, batch.partition].in_flight = None
        self.buffered_bytes -= batch.pending.bytes

    def fail_all(self) -> list[Pending]:
        """Give up on everything, sent or not."""
        pending = [batch.pending for batch in self._in_flight.values()]
        for partition in self._partitions.values():
            pending += partition.waiting
        self._partitions.clear()
        self._in_flight.clear()
        self.open.clear()
        self.buffered_bytes = 0
        return pending
