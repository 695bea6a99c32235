"""Batches that one attempt stages: numbered, kept until they are acknowledged, sent again in order.
No IO.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lakemq.broker_core.api.records.batch import RECORDS_MAX
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.plugins.native.sdk.net.calls import columns_of
from lakemq.plugins.native.sdk.producer.checking import encoded
from lakemq.plugins.native.sdk.types import NewRecord


@dataclass(slots=True)
class OutgoingStaged:
    """One batch that has no answer yet."""

    number: int
    topic: str
    partition: int
    data: bytes


@dataclass(slots=True)
class _Gathered:
    records: list[NewRecord]
    size_bytes: int = 0


class StagedBatches:
    """The state of one attempt."""

    def __init__(self, *, batch_max_bytes: int, compression: Compression) -> None:
        self.made = 0
        """Batches so far."""
        self.records = 0
        self.buffered_bytes = 0
        """Of batches without an answer."""
        self._batch_max_bytes = batch_max_bytes
        self._compression = compression
        self._gathered: dict[tuple[str, int], _Gathered] = {}
        self._unanswered: deque[OutgoingStaged] = deque()

    def gather(
        self, topic: str, partition: int, record: NewRecord, now_ms: int
    ) -> list[OutgoingStaged]:
        """Take one record; the batch to send when it is full."""
        place = (topic, partition)
        gathered = self._gathered.get(place)
        if gathered is None:
            gathered = self._gathered[place] = _Gathered([])
        gathered.records.append(record)
        gathered.size_bytes += len(record.value or b"") + len(record.key or b"") + 32
        # Checked behind the append: a batch is cut after the record that fills it, so one record is
        # always taken.
        full = gathered.size_bytes >= self._batch_max_bytes
        if full or len(gathered.records) >= RECORDS_MAX:
            return self.flush(topic, partition, now_ms)
        return []

    def flush(self, topic: str, partition: int, now_ms: int) -> list[OutgoingStaged]:
        """What was gathered for a partition, as a batch."""
        gathered = self._gathered.pop((topic, partition), None)
        if gathered is None:
            return []
        return [self._made(topic, partition, columns_of(gathered.records, now_ms), now_ms)]

    def flush_all(self, now_ms: int) -> list[OutgoingStaged]:
        """Batches of everything that is gathered."""
        return [batch for place in list(self._gathered) for batch in self.flush(*place, now_ms)]

    def add(
        self, topic: str, partition: int, columns: Columns, now_ms: int
    ) -> list[OutgoingStaged]:
        """Columns as a batch of their own, behind what was gathered for that partition."""
        # Single records that came earlier go first: order within the partition.
        batches = self.flush(topic, partition, now_ms)
        return [*batches, self._made(topic, partition, columns, now_ms)]

    def _made(self, topic: str, partition: int, columns: Columns, now_ms: int) -> OutgoingStaged:
        data = encoded(columns, now_ms=now_ms, compression=self._compression)
        # No producer stamp in the data: staged batches are told apart by attempt and number, and
        # have no offsets before they are committed.
        batch = OutgoingStaged(self.made, topic, partition, data)
        self.made += 1
        self.records += len(columns.values)
        self.buffered_bytes += len(data)
        self._unanswered.append(batch)
        return batch

    def answered(self, number: int) -> None:
        """The broker has the batch. Answers come in order; late ones of an older stream don't
        count."""
        if self._unanswered and self._unanswered[0].number == number:
            self.buffered_bytes -= len(self._unanswered.popleft().data)

    def unanswered(self) -> list[OutgoingStaged]:
        """In order: to be sent again on a new stream."""
        return list(self._unanswered)

    @property
    def idle(self) -> bool:
        """Whether every batch has been answered."""
        return not self._unanswered
