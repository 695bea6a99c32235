"""Records of a topic without a group, from its batches."""

from __future__ import annotations

from collections.abc import Iterator

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import Record, TopicPartition
from lakemq.plugins.native.sdk.consumer.chunks import decoded
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy, OnCorrupt
from lakemq.plugins.native.sdk.types import ConsumerRecord
from lakemq.plugins.native.wire.filtering import RecordFilter


class TopicReader:
    """What `consume` wants of the batches of a topic."""

    def __init__(self, topic: str, wanted: RecordFilter | None, on_corrupt: OnCorrupt) -> None:
        self.topic, self.wanted, self.on_corrupt = topic, wanted, on_corrupt
        self._corrupt = CorruptPolicy(on_corrupt)

    def records(self, partition: int, batch: RecordBatch, first: int) -> Iterator[Record]:
        """Those from offset `first` on."""
        try:
            records = batch.records() if self.wanted is None else self.wanted.records(batch)
        except CorruptBatch as error:
            self._corrupt.note(self.topic, partition, batch.header.base_offset, error)
            return
        yield from (record for record in records if record.offset >= first)

    def placed(self, partition: int, batch: RecordBatch, first: int) -> list[ConsumerRecord]:
        """The same, with topic and partition."""
        place = TopicPartition(self.topic, partition)
        try:
            return decoded(place, batch, first, self.wanted)
        except CorruptBatch as error:
            self._corrupt.note(self.topic, partition, batch.header.base_offset, error)
            return []
