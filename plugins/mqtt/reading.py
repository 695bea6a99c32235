"""Committed batches of a partition, one after the other, and what is wrong with them. Edge: awaits
the broker.

What cannot be read is left out, counted, and named in the log by its place: no record ends a start,
or keeps from anybody what lies behind it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from broker_core.api.errors import CorruptBatch, OffsetOutOfRange
from broker_core.api.ports import Broker
from broker_core.api.record_batch import RecordBatch, split
from broker_core.api.types import CommittedBatch, Offset
from plugins.mqtt.hub import Counters
from plugins.mqtt.messages import Message, Place
from plugins.mqtt.records import Meta, RecordReader

log = logging.getLogger(__name__)

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


class Salvage:
    """Reads what can be read of batches, and keeps count of the rest."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def messages(
        self,
        reader: RecordReader,
        batch: CommittedBatch,
        heard: Callable[[str], bool] | None = None,
    ) -> Iterator[tuple[Message, Meta]]:
        """As `RecordReader.read`; nothing of a batch that is corrupt inside."""
        try:
            yield from reader.read(batch, heard)
        except CorruptBatch as error:
            self._left_out(batch, error)

    def opened(self, batch: CommittedBatch) -> RecordBatch | None:
        """None: it is corrupt inside."""
        try:
            return RecordBatch(batch.data)
        except CorruptBatch as error:
            self._left_out(batch, error)
            return None

    def rows(self, batch: CommittedBatch) -> Iterator[tuple[Place, bytes, bytes | None]]:
        """Place, key and value of every record."""
        opened = self.opened(batch)
        if opened is None:
            return
        for offset, key, value in zip(
            opened.offsets(), opened.keys(), opened.values(), strict=True
        ):
            yield Place(batch.topic, batch.partition, offset), key or b"", value

    def refused(self, place: Place, error: Exception) -> None:
        """A record of our own topics says nothing that can be read."""
        self._counters.records_unreadable += 1
        log.error("%s-%d offset %d is unreadable and left out: %s", *place, error)

    def _left_out(self, batch: CommittedBatch, error: CorruptBatch) -> None:
        self._counters.batches_corrupt += 1
        place = (batch.topic, batch.partition, batch.base_offset)
        log.error("%s-%d offset %d: the batch is corrupt and left out: %s", *place, error)
