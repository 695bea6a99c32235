"""Committed batches of a partition, one after the other. Edge: awaits the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from broker_core.api.errors import OffsetOutOfRange
from broker_core.api.ports import Broker
from broker_core.api.record_batch import split
from broker_core.api.types import CommittedBatch, Offset

_FETCH_BYTES: Final = 1024 * 1024


async def batches_of(
    broker: Broker, topic: str, partition: int, start: int, end: int
) -> AsyncIterator[CommittedBatch]:
    """Committed batches of a partition from `start` (or what is left behind it) up to `end`."""
    source = broker.partition(topic, partition)
    offset = max(start, source.log_start_offset)
    while offset < end:
        try:
            got = await source.fetch(Offset(offset), bytes_max=_FETCH_BYTES)
        except OffsetOutOfRange:
            if source.log_start_offset <= offset:
                raise
            offset = source.log_start_offset  # retention was quicker
            continue
        for position, header in split(got.data):
            data = got.data[position : position + header.total_bytes]
            yield CommittedBatch(topic, partition, Offset(header.base_offset), data)
        if got.next_offset <= offset:
            return
        offset = got.next_offset
