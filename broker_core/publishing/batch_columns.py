"""A client's batch as columns, and the batch that other columns make of it."""

from __future__ import annotations

from lakemq.broker_core.api.errors import BatchTooLarge
from lakemq.broker_core.api.records.batch import (
    APPEND_TIME,
    HAS_HEADERS,
    HAS_KEYS,
    BatchHeader,
    ProducerStamp,
    RecordBatch,
    encode_with_header,
)
from lakemq.broker_core.api.types import Columns


def columns_of(batch: bytes) -> Columns:
    """Its records. Keys and headers are None where it has no such column. CorruptBatch."""
    opened = RecordBatch(batch)
    attributes = opened.header.attributes
    return Columns(
        opened.values(),
        opened.keys() if attributes & HAS_KEYS else None,
        opened.encoded_headers() if attributes & HAS_HEADERS else None,
        opened.timestamps_ms(),
    )


def with_columns(
    header: BatchHeader, before: Columns, columns: Columns, now_ms: int
) -> tuple[BatchHeader, bytes]:
    """`columns`, as many records as `before`, in a batch with the producer, the sequence and the
    codec of `header`. `now_ms` stands in for timestamps that were taken away. BatchTooLarge: no
    batch holds them."""
    kept = columns.timestamps_ms == before.timestamps_ms
    producer = ProducerStamp(header.producer_id, header.producer_epoch, header.base_sequence)
    try:
        return encode_with_header(
            columns,
            now_ms=now_ms,
            compression=header.compression,
            producer=producer,
            attributes=header.attributes & APPEND_TIME if kept else 0,
        )
    except (ValueError, OverflowError) as error:
        raise BatchTooLarge(
            f"interceptors have made a batch that cannot be stored: {error}"
        ) from None
