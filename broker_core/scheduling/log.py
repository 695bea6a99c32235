"""Scheduled batches on disk: the state topic of schedules, appended to and read back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from functools import partial

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import CorruptLog
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import HEADER_BYTES, pack_header, read_header
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Acks, AppendResult
from lakemq.broker_core.scheduling.formats import (
    EndedSchedule,
    StoredSchedule,
    decode_schedule,
    decode_schedule_id,
    encode_ended,
    encode_schedule,
    encode_schedule_id,
)
from lakemq.broker_core.scheduling.queue import PendingSchedule
from lakemq.broker_core.transactions.formats import SCHEDULES_TOPIC
from lakemq.broker_core.transactions.logs import PARTITIONS
from lakemq.broker_core.transactions.state import StagedRef

_log = logging.getLogger(__name__)


class ScheduleLog:
    """One record for each schedule, by its id."""

    def __init__(self, broker: Broker) -> None:
        self._topic = StateTopic(
            broker, SCHEDULES_TOPIC, partitions=PARTITIONS, acks=Acks.REPLICATED, large_values=True
        )

    async def ensure(self) -> None:
        """Create the topic of schedules if there is none."""
        await self._topic.ensure()

    def append(
        self, schedule_id: str, stored: StoredSchedule
    ) -> tuple[PendingSchedule, asyncio.Future[AppendResult]]:
        """The pending schedule, and when it is on disk. Those for one target partition are all in
        one partition."""
        number = partition_of(f"{stored.topic}/{stored.partition}".encode(), PARTITIONS)
        value = encode_schedule(stored)
        # The offset that the record is about to get: this node alone appends here, and nothing
        # comes between.
        offset = self._topic.log(number).log_end_offset
        written = self._topic.put(encode_schedule_id(schedule_id), value, partition=number)
        return _pending(schedule_id, stored, number, offset, len(value)), written

    def append_ended(
        self, number: int, schedule_ids: Iterable[str], now_ms: int
    ) -> asyncio.Future[AppendResult]:
        """They were delivered or cancelled. Done when that is on disk."""
        return self._topic.write(_ended(schedule_ids, now_ms), partition=number)

    async def append_delivered(
        self, number: int, schedule_ids: Iterable[str], now_ms: int, backoff: Backoff
    ) -> None:
        """As `append_ended`, again and again until it is on disk."""
        await self._topic.write_retrying(
            _ended(schedule_ids, now_ms),
            backoff,
            partition=number,
            failed=partial(_log.warning, "could not mark delivered schedules yet: %s"),
        )

    def delete(self, number: int, schedule_ids: Iterable[str]) -> asyncio.Future[AppendResult]:
        """Nothing need be known of them any more."""
        entries = dict.fromkeys(map(encode_schedule_id, schedule_ids))
        return self._topic.write(entries, partition=number)

    async def load(self) -> AsyncIterator[tuple[str, int, PendingSchedule | EndedSchedule | None]]:
        """(id, partition, what was last known of it so far), in order; None: deleted."""
        async for record in self._topic.records():
            try:
                schedule_id = decode_schedule_id(record.key)
                found = None if record.value is None else decode_schedule(record.value)
            except ValueError as error:
                self._topic.skip(record, error)
                continue
            if isinstance(found, StoredSchedule):
                size = len(record.value or b"")
                pending = _pending(schedule_id, found, record.partition, record.offset, size)
                yield schedule_id, record.partition, pending
            else:
                yield schedule_id, record.partition, found

    async def read(self, entry: StagedRef) -> bytes:
        """The batch as it shall be appended to its partition."""
        found = decode_schedule(await self._topic.value_at(entry.log_partition, entry.offset))
        if isinstance(found, StoredSchedule):
            return at_its_time(found)
        raise CorruptLog(f"{SCHEDULES_TOPIC}-{entry.log_partition} has no batch at {entry.offset}")


def _ended(schedule_ids: Iterable[str], now_ms: int) -> dict[bytes, bytes | None]:
    return dict.fromkeys(map(encode_schedule_id, schedule_ids), encode_ended(EndedSchedule(now_ms)))


def at_its_time(stored: StoredSchedule) -> bytes:
    """The batch with the time it was due as its first timestamp, unless it keeps its own."""
    if stored.keep_timestamps:
        return stored.batch
    header = read_header(stored.batch)
    moved = header._replace(
        base_timestamp_ms=stored.deliver_at_ms,
        max_timestamp_ms=stored.deliver_at_ms + header.max_timestamp_ms - header.base_timestamp_ms,
    )
    return pack_header(moved) + stored.batch[HEADER_BYTES:]


def _pending(
    schedule_id: str, stored: StoredSchedule, number: int, offset: int, size_bytes: int
) -> PendingSchedule:
    return PendingSchedule(
        schedule_id, stored.deliver_at_ms, stored.topic, stored.topic_id, stored.partition,
        stored.records, size_bytes, number, offset,
    )  # fmt: skip
