"""Stored batches of one partition, one after the other: what start-up and replay read with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from lakemq.broker_core.api.errors import OffsetOutOfRange
from lakemq.broker_core.api.ports import PartitionLog
from lakemq.broker_core.api.records.batch import CONTROL, RecordBatch, split
from lakemq.broker_core.api.records.stored import open_stored
from lakemq.broker_core.api.types import CommittedBatch, Offset

FETCH_BYTES: Final = 1024 * 1024


async def committed_batches(
    log: PartitionLog,
    topic: str,
    partition: int,
    start: int,
    end: int,
    bytes_max: int = FETCH_BYTES,
) -> AsyncIterator[CommittedBatch]:
    """Batches of user records from offset `start`, or the log start if that is higher, up to `end`.
    Fetches `bytes_max` at a time. Raises what `PartitionLog.fetch` does, but not for a log start
    that moves meanwhile (retention, `delete_records`): reading goes on there."""
    offset = max(start, log.log_start_offset)
    while offset < end:
        try:
            got = await log.fetch(Offset(offset), bytes_max=bytes_max)
        except OffsetOutOfRange:
            if log.log_start_offset <= offset:
                raise
            offset = log.log_start_offset
            continue
        for position, header in split(got.data):
            if not header.attributes & CONTROL:
                data = got.data[position : position + header.total_bytes]
                yield CommittedBatch(topic, partition, Offset(header.base_offset), data)
        if got.next_offset <= offset:
            return
        offset = got.next_offset


def open_batch(batch: CommittedBatch) -> RecordBatch | None:
    """None: it is corrupt inside, which is counted and logged."""
    return open_stored(batch.data, batch.topic, batch.partition)
