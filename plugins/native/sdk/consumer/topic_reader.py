"""Records of a topic without a group, from its batches."""

from __future__ import annotations

from collections.abc import Iterator

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import Offset, Record, TopicPartition
from lakemq.plugins.native.sdk.consumer.chunks import decoded
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptPolicy, OnCorrupt
from lakemq.plugins.native.sdk.serializing import Deserialized, RecordDeserializer
from lakemq.plugins.native.sdk.types import ConsumerRecord
from lakemq.plugins.native.wire.filtering import RecordFilter


class TopicReader:
    """What `consume` wants of the batches of a topic."""

    def __init__(
        self,
        topic: str,
        wanted: RecordFilter | None,
        on_corrupt: OnCorrupt,
        deserializer: RecordDeserializer | None = None,
    ) -> None:
        self.topic, self.wanted, self.on_corrupt = topic, wanted, on_corrupt
        self.deserializer = deserializer
        self._corrupt = CorruptPolicy(on_corrupt)

    def records(self, partition: int, batch: RecordBatch, first: int) -> Iterator[Record]:
        """Those from offset `first` on. With a deserializer behind `prepare`: raises
        DeserializationError."""
        if self.deserializer is not None:
            for each in self.placed(partition, batch, first):
                yield Record(
                    Offset(each.offset), each.timestamp_ms, each.key, each.value, each.headers
                )
            return
        try:
            records = batch.records() if self.wanted is None else self.wanted.records(batch)
        except CorruptBatch as error:
            self._corrupt.note(self.topic, partition, batch.header.base_offset, error)
            return
        yield from (record for record in records if record.offset >= first)

    def placed(self, partition: int, batch: RecordBatch, first: int) -> Iterator[ConsumerRecord]:
        """The same, with topic and partition."""
        found = self._stored(partition, batch, first)
        return iter(found) if self.deserializer is None else Deserialized(found, self.deserializer)

    async def prepare(self, partition: int, batch: RecordBatch) -> None:
        """Ask for what making the records of a batch needs."""
        if self.deserializer is not None and self.deserializer.asks:
            await self.deserializer.prepare(self._stored(partition, batch, 0))

    def _stored(self, partition: int, batch: RecordBatch, first: int) -> list[ConsumerRecord]:
        place = TopicPartition(self.topic, partition)
        try:
            return decoded(place, batch, first, self.wanted)
        except CorruptBatch as error:
            self._corrupt.note(self.topic, partition, batch.header.base_offset, error)
            return []
