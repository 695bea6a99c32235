"""The topic of delayed batches: appended to, read back. Edge: awaits the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from broker_core.api.errors import CorruptLog
from broker_core.api.partitioner import partition_of
from broker_core.api.ports import Broker
from broker_core.api.record_batch import HEADER_BYTES, encode, pack_header, read_header
from broker_core.api.types import Acks, AppendResult, Columns, Offset
from broker_core.transactions.coordinator_log import PARTITIONS, batches_of, rows_of
from broker_core.transactions.delayed_format import (
    Delayed,
    Ended,
    decode_delayed,
    decode_id,
    encode_delayed,
    encode_ended,
    encode_id,
)
from broker_core.transactions.formats import DELAYED_TOPIC
from broker_core.transactions.state import Entry
from broker_core.transactions.timer import Waiting

_log = logging.getLogger("lakemq.schedules")


class DelayedLog:
    """Delayed batches on disk."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def append(
        self, schedule_id: str, delayed: Delayed, now_ms: int
    ) -> tuple[Waiting, asyncio.Future[AppendResult]]:
        """The waiting batch, and when it is on disk. One target partition's are all in one."""
        place = f"{delayed.topic}/{delayed.partition}".encode()
        number = partition_of(place, PARTITIONS)
        log = self._broker.partition(DELAYED_TOPIC, number)
        value = encode_delayed(delayed)
        batch = encode(Columns([value], [encode_id(schedule_id)]), now_ms=now_ms)
        offset = log.log_end_offset
        written = log.append(batch, read_header(batch), Acks.REPLICATED)
        return _waiting(schedule_id, delayed, number, offset, len(value)), written

    def append_ended(
        self, number: int, schedule_ids: Sequence[str], now_ms: int
    ) -> asyncio.Future[AppendResult]:
        """They were delivered or cancelled. Done when that is on disk."""
        return self._append_all(number, schedule_ids, encode_ended(Ended(now_ms)), now_ms)

    def append_forgotten(
        self, number: int, schedule_ids: Sequence[str], now_ms: int
    ) -> asyncio.Future[AppendResult]:
        """Nothing need be known of them any more."""
        return self._append_all(number, schedule_ids, None, now_ms)

    def _append_all(
        self, number: int, schedule_ids: Sequence[str], value: bytes | None, now_ms: int
    ) -> asyncio.Future[AppendResult]:
        columns = Columns([value] * len(schedule_ids), [encode_id(each) for each in schedule_ids])
        batch = encode(columns, now_ms=now_ms)
        log = self._broker.partition(DELAYED_TOPIC, number)
        return log.append(batch, read_header(batch), Acks.REPLICATED)

    async def load(self) -> AsyncIterator[tuple[str, int, Waiting | Ended | None]]:
        """(id, partition, what was last known of it so far), in order; None: forgotten."""
        async for number, batch in batches_of(self._broker, DELAYED_TOPIC):
            for key, value, offset in zip(
                batch.keys(), batch.values(), batch.offsets(), strict=True
            ):
                try:
                    schedule_id = decode_id(key or b"")
                    found = None if value is None else decode_delayed(value)
                except ValueError as error:
                    _log.error("a record of %s is left alone: %s", DELAYED_TOPIC, error)
                    continue
                if isinstance(found, Delayed):
                    size = len(value or b"")
                    waiting = _waiting(schedule_id, found, number, offset, size)
                    waiting.durable = True
                    yield schedule_id, number, waiting
                else:
                    yield schedule_id, number, found

    async def read(self, entry: Entry) -> bytes:
        """The batch as it shall be appended to its partition."""
        log = self._broker.partition(DELAYED_TOPIC, entry.log_partition)
        got = await log.fetch(Offset(entry.offset), bytes_max=1)
        for value, offset in rows_of(got.data, DELAYED_TOPIC, entry.log_partition):
            if offset == entry.offset and value is not None:
                found = decode_delayed(value)
                if isinstance(found, Delayed):
                    return at_its_time(found)
        raise CorruptLog(f"{DELAYED_TOPIC}-{entry.log_partition} has no batch at {entry.offset}")


def at_its_time(delayed: Delayed) -> bytes:
    """The batch with the time it was due as its first timestamp, unless it keeps its own."""
    if delayed.keep_timestamps:
        return delayed.batch
    header = read_header(delayed.batch)
    moved = header._replace(
        base_timestamp_ms=delayed.deliver_at_ms,
        max_timestamp_ms=delayed.deliver_at_ms + header.max_timestamp_ms - header.base_timestamp_ms,
    )
    return pack_header(moved) + delayed.batch[HEADER_BYTES:]


def _waiting(
    schedule_id: str, delayed: Delayed, number: int, offset: int, size_bytes: int
) -> Waiting:
    return Waiting(
        schedule_id, delayed.deliver_at_ms, delayed.topic, delayed.topic_id, delayed.partition,
        delayed.records, size_bytes, number, offset,
    )  # fmt: skip
