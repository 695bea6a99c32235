"""A producer that makes bytes of what the application works with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakemq.broker_core.api.types import Columns
from lakemq.plugins.native.sdk.arrow import arrow_batches, columns_of_rows
from lakemq.plugins.native.sdk.net import calls as wire
from lakemq.plugins.native.sdk.producer.options import DeliveryCallback
from lakemq.plugins.native.sdk.producer.producer import Producer
from lakemq.plugins.native.sdk.serializing import RecordSerializer
from lakemq.plugins.native.sdk.types import NewRecord, RecordMetadata

if TYPE_CHECKING:
    import pyarrow as pa


class SerializingProducer(Producer):
    """A class of its own, so that producers without serializers spend nothing on them."""

    serializer: RecordSerializer
    """Set by who makes it."""

    async def enqueue(
        self,
        topic: str,
        record: NewRecord,
        *,
        partition: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """As `Producer.enqueue`."""
        record = self.serializer.record(record)
        return await super().enqueue(topic, record, partition=partition, on_delivery=on_delivery)

    def prepared(self, record: NewRecord) -> NewRecord:
        """As `Producer.prepared`."""
        return super().prepared(self.serializer.record(record))

    async def send_batch(
        self,
        topic: str,
        records: Columns | Sequence[NewRecord],
        *,
        partition: int | None = None,
    ) -> list[RecordMetadata]:
        """As `Producer.send_batch`; columns are sent as they are."""
        if not isinstance(records, Columns):
            records = [self.serializer.record(record) for record in wire.rows_given(records)]
        return await super().send_batch(topic, records, partition=partition)

    async def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """As `Producer.send_arrow`. Of a table without a column `value`, each row is one: a dict of
        all columns but `key`, `headers` and `timestamp`."""
        placed: list[RecordMetadata] = []
        for batch in arrow_batches(table):
            if "value" in batch.schema.names or not self.serializer.takes_rows:
                placed += await super().send_arrow(topic, batch, partition=partition)
                continue
            columns = columns_of_rows(batch, self._value_of)
            placed += await super().send_batch(topic, columns, partition=partition)
        return placed

    def _value_of(self, row: dict[str, Any]) -> bytes:
        value: bytes = self.serializer.record(NewRecord(row)).value
        return value
