"""What an idempotent producer sends next: records in, requests out. Pure.

Per partition one batch is under way; what arrives meanwhile makes up the next one, so batches grow
with load by themselves and order holds through every retry. A batch keeps its sequence number
until it is answered for good (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from broker_core.api.errors import LakeMQError
from broker_core.api.record_batch import encode
from broker_core.api.types import Acks, Compression
from plugins.native.sdk.sequencing import SequenceNumbers
from plugins.native.sdk.types import NewRecord, RecordMetadata
from plugins.native.sdk.wire import columns_of

_RECORD_OVERHEAD_BYTES: Final = 16


class Ticket:
    """Stands for one record until its outcome is known. `outcome` is set exactly once."""

    __slots__ = ("bytes", "deadline_ms", "outcome", "record")

    def __init__(self, record: NewRecord, deadline_ms: int) -> None:
        self.record = record
        self.deadline_ms = deadline_ms
        self.bytes = (
            len(record.value or b"")
            + len(record.key or b"")
            + sum(len(name) + len(value or b"") + 6 for name, value in record.headers)
            + _RECORD_OVERHEAD_BYTES
        )
        self.outcome: RecordMetadata | LakeMQError | None = None


@dataclass(slots=True)
class OutgoingBatch:
    """One batch under way."""

    request_id: int
    topic: str
    partition: int
    data: bytes
    tickets: list[Ticket]
    timestamps_ms: list[int]
    attempts: int = 0


@dataclass(slots=True)
class _Partition:
    waiting: deque[Ticket] = field(default_factory=deque)
    under_way: OutgoingBatch | None = None


class ProducerBatches:
    """The state of one producer. Times are milliseconds of the caller's clock."""

    def __init__(
        self, sequences: SequenceNumbers, *, batch_bytes_max: int, compression: Compression
    ) -> None:
        self.sequences = sequences
        self.buffered_bytes = 0
        """Bytes of records without an outcome."""
        self._batch_bytes_max = batch_bytes_max
        self._compression = compression
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._under_way: dict[int, OutgoingBatch] = {}
        self._next_request_id = 1

    def add(self, topic: str, partition: int, ticket: Ticket) -> None:
        """Queue one record."""
        self._partitions.setdefault((topic, partition), _Partition()).waiting.append(ticket)
        self.buffered_bytes += ticket.bytes

    @property
    def idle(self) -> bool:
        return not self.buffered_bytes

    def ready(self, now_ms: int) -> Iterator[OutgoingBatch]:
        """Batches to send now: one for every partition that waits and has none under way."""
        for (topic, number), partition in self._partitions.items():
            if partition.under_way is None and partition.waiting:
                yield self._start(topic, number, partition, now_ms)

    def _start(self, topic: str, number: int, partition: _Partition, now_ms: int) -> OutgoingBatch:
        tickets: list[Ticket] = []
        size = 0
        while partition.waiting:
            size += partition.waiting[0].bytes
            if tickets and size > self._batch_bytes_max:
                break
            tickets.append(partition.waiting.popleft())
        columns = columns_of([ticket.record for ticket in tickets], now_ms)
        data = encode(
            columns,
            producer=self.sequences.next(topic, number),
            compression=self._compression,
        )
        batch = OutgoingBatch(
            self._next_request_id, topic, number, data, tickets, list(columns.timestamps_ms or ())
        )
        self._next_request_id += 1
        partition.under_way = self._under_way[batch.request_id] = batch
        return batch

    def under_way(self) -> list[OutgoingBatch]:
        """All batches without an answer: to be sent again on a new connection, as they are."""
        return list(self._under_way.values())

    def batch(self, request_id: int) -> OutgoingBatch | None:
        return self._under_way.get(request_id)

    def taken(self, batch: OutgoingBatch, base_offset: int, acks: Acks) -> list[Ticket]:
        """The broker has the batch; its tickets, with their outcome."""
        for index, ticket in enumerate(batch.tickets):
            ticket.outcome = RecordMetadata(
                batch.topic, batch.partition, base_offset + index, batch.timestamps_ms[index], acks
            )
        self.sequences.taken(batch.topic, batch.partition, len(batch.tickets))
        return self._close(batch)

    def refused(self, batch: OutgoingBatch, error: LakeMQError) -> list[Ticket]:
        """The broker surely did not take the batch and never will."""
        for ticket in batch.tickets:
            ticket.outcome = error
        return self._close(batch)

    def _close(self, batch: OutgoingBatch) -> list[Ticket]:
        del self._under_way[batch.request_id]
        self._partitions[batch.topic, batch.partition].under_way = None
        self.buffered_bytes -= sum(ticket.bytes for ticket in batch.tickets)
        return batch.tickets

    def fail_all(self, error: LakeMQError) -> list[Ticket]:
        """Give up on everything, sent or not."""
        tickets = [ticket for batch in self._under_way.values() for ticket in batch.tickets]
        for partition in self._partitions.values():
            tickets += partition.waiting
        for ticket in tickets:
            ticket.outcome = error
        self._partitions.clear()
        self._under_way.clear()
        self.buffered_bytes = 0
        return tickets
