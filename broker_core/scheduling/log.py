"""Scheduled batches on disk: the state topic of schedules, appended to and read back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import CorruptLog
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.batch import HEADER_BYTES, pack_header, read_header
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.transactions.types import Owner
from lakemq.broker_core.api.types import Acks, AppendResult
from lakemq.broker_core.scheduling.formats import (
    STATE_KEY,
    EndedSchedule,
    StoredSchedule,
    decode_schedule,
    decode_schedule_id,
    encode_ended,
    encode_schedule,
    encode_schedule_id,
)
from lakemq.broker_core.scheduling.queue import PendingSchedule
from lakemq.broker_core.transactions.formats import (
    SCHEDULER,
    SCHEDULES_TOPIC,
    decode_state,
    encode_state,
)
from lakemq.broker_core.transactions.logs import PARTITIONS, OwnerStates
from lakemq.broker_core.transactions.state import OwnerState, StagedRef

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoredSchedules:
    """What one partition holds."""

    schedules: dict[str, PendingSchedule | EndedSchedule] = field(default_factory=dict)
    """By id: those that wait, and those that have ended not long ago."""
    state: OwnerState = field(default_factory=OwnerState)
    """The decision that is pending, if there is one."""


def owner_of(number: int) -> Owner:
    """Who delivers the schedules of a partition, as commits name it."""
    return Owner(SCHEDULER, str(number))


class ScheduleLog:
    """One record for each schedule, by its id, and one of what is decided, in each partition."""

    def __init__(self, broker: Broker) -> None:
        self.topic = StateTopic(
            broker, SCHEDULES_TOPIC, partitions=PARTITIONS, acks=Acks.REPLICATED, large_values=True
        )
        self._former = OwnerStates(broker)

    async def ensure(self) -> None:
        """Create the topic of schedules if there is none."""
        await self.topic.ensure()

    def partition_of(self, topic: str, partition: int) -> int:
        """The partition that keeps schedules for a target. Raises UnknownTopic."""
        return self.topic.partition_of(f"{topic}/{partition}".encode())

    # -- writing

    def append(self, owner: Owner, state: OwnerState | None) -> asyncio.Future[AppendResult]:
        """What is decided in a partition. Done when it is on disk, as all that is written here: on
        the disks of all in-sync replicas."""
        value = None if state is None else encode_state(state)
        return self.topic.put(STATE_KEY, value or b"", partition=int(owner.name))

    async def append_decision(self, number: int, state: OwnerState, backoff: Backoff) -> None:
        """As `append`, again and again until it is on disk: an append that fails where leadership
        moves may be on disk all the same, and this node may lead again then."""
        await self.topic.write_retrying(
            {STATE_KEY: encode_state(state)},
            backoff,
            partition=number,
            failed=partial(_log.warning, "could not decide on schedules yet: %s"),
        )

    def append_batch(
        self, schedule_id: str, stored: StoredSchedule
    ) -> tuple[PendingSchedule, asyncio.Future[AppendResult]]:
        """The pending schedule, and when it is on disk. Those for one target partition are all in
        one partition."""
        number = self.partition_of(stored.topic, stored.partition)
        value = encode_schedule(stored)
        # The offset that the record is about to get: this node alone appends here, and nothing
        # comes between.
        offset = self.topic.log(number).log_end_offset
        written = self.topic.put(encode_schedule_id(schedule_id), value, partition=number)
        return _pending(schedule_id, stored, number, offset, len(value)), written

    def append_ended(
        self, number: int, schedule_ids: Iterable[str], now_ms: int
    ) -> asyncio.Future[AppendResult]:
        """They were delivered or cancelled. Done when that is on disk."""
        return self.topic.write(_ended(schedule_ids, now_ms), partition=number)

    async def append_delivered(
        self, number: int, schedule_ids: Iterable[str], now_ms: int, backoff: Backoff
    ) -> None:
        """As `append_ended`, again and again until it is on disk."""
        await self.topic.write_retrying(
            _ended(schedule_ids, now_ms),
            backoff,
            partition=number,
            failed=partial(_log.warning, "could not mark delivered schedules yet: %s"),
        )

    def delete(self, number: int, schedule_ids: Iterable[str]) -> asyncio.Future[AppendResult]:
        """Nothing need be known of them any more."""
        entries = dict.fromkeys(map(encode_schedule_id, schedule_ids))
        return self.topic.write(entries, partition=number)

    # -- reading

    async def load(self, partition: int, end: int) -> StoredSchedules:
        """What a partition holds, once all below offset `end` is committed. Raises LakeMQError."""
        stored, state = StoredSchedules(), None
        async for record in self.topic.records_of(partition, end):
            try:
                if record.key == STATE_KEY:
                    state = decode_state(record.value or b"")
                    continue
                schedule_id = decode_schedule_id(record.key)
                found = None if record.value is None else decode_schedule(record.value)
            except ValueError as error:
                self.topic.skip(record, error)
                continue
            # The newest of an id counts, and comes last.
            stored.schedules.pop(schedule_id, None)
            if isinstance(found, StoredSchedule):
                size = len(record.value or b"")
                stored.schedules[schedule_id] = _pending(
                    schedule_id, found, partition, record.offset, size
                )
            elif found is not None:
                stored.schedules[schedule_id] = found
        stored.state = state or await self._take_former(partition) or OwnerState()
        return stored

    async def _take_former(self, partition: int) -> OwnerState | None:
        """What is decided lay in the topic of transactions once, which is this node's own: it is
        written here, and deleted there."""
        owner = owner_of(partition)
        former = (await self._former.load()).get(owner)
        if former is not None:
            await self.append(owner, former)
            await self._former.append(owner, None)
        return former

    async def read(self, entry: StagedRef) -> bytes:
        """The batch as it shall be appended to its partition."""
        found = decode_schedule(await self.topic.value_at(entry.log_partition, entry.offset))
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
