"""The coordinator's own topics: made when needed, appended to, read back. Edge: awaits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Final

from broker_core.api.errors import CorruptLog, LakeMQError, TopicExists, UnknownTopic
from broker_core.api.partitioner import partition_of
from broker_core.api.ports import Broker
from broker_core.api.record_batch import BODY_BYTES_MAX, RecordBatch, encode, read_header
from broker_core.api.stored_batches import readable_batches
from broker_core.api.transactions import Owner
from broker_core.api.types import Acks, AppendResult, Columns, Offset, TopicConfig
from broker_core.transactions.formats import (
    DELAYED_TOPIC,
    STAGED_TOPIC,
    TRANSACTIONS_TOPIC,
    StagedKey,
    decode_owner,
    decode_staged_key,
    decode_state,
    encode_owner,
    encode_staged_key,
    encode_state,
)
from broker_core.transactions.staged import Staged
from broker_core.transactions.state import Entry, OwnerState

_log = logging.getLogger("lakemq.transactions")

PARTITIONS: Final = 4
_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 4 * 1024 * 1024


class CoordinatorLog:
    """Owners' states and staged batches on disk."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._making = asyncio.Lock()

    async def ensure_topics(self) -> None:
        async with self._making:
            lasting = replace(
                self._broker.topic_defaults(),
                retention_ms=None,
                retention_bytes=None,
                segment_bytes_max=_SEGMENT_BYTES,
                compression="producer",
                batch_bytes_max=BODY_BYTES_MAX,
            )
            compacted = replace(lasting, cleanup="compact")
            await self._ensure(STAGED_TOPIC, replace(lasting, cleanup="delete"))
            await self._ensure(TRANSACTIONS_TOPIC, compacted)
            await self._ensure(DELAYED_TOPIC, compacted)

    async def _ensure(self, name: str, config: TopicConfig) -> None:
        if is_there(self._broker, name):
            return
        try:
            await self._broker.create_topic(name, PARTITIONS, config)
        except TopicExists:  # another node was quicker
            await self._broker.ensure_topic(name)

    # -- owners

    def check_home(self, owner: Owner) -> None:
        """One node alone may act for an owner: NotLeader names it."""
        info = self._broker.topic(TRANSACTIONS_TOPIC)
        number = partition_of(encode_owner(owner), info.partitions)
        self._broker.check_leads(TRANSACTIONS_TOPIC, number, f"the home of {owner}")

    def append_state(
        self, owner: Owner, state: OwnerState | None, now_ms: int
    ) -> asyncio.Future[AppendResult]:
        """`None` forgets the owner. Done when it is on disk."""
        key = encode_owner(owner)
        partitions = self._broker.topic(TRANSACTIONS_TOPIC).partitions
        log = self._broker.partition(TRANSACTIONS_TOPIC, partition_of(key, partitions))
        value = None if state is None else encode_state(state)
        batch = encode(Columns([value], [key]), now_ms=now_ms)
        return log.append(batch, read_header(batch), Acks.REPLICATED)

    async def load_states(self) -> dict[Owner, OwnerState]:
        found: dict[Owner, OwnerState] = {}
        async for _, batch in batches_of(self._broker, TRANSACTIONS_TOPIC):
            for key, value in zip(batch.keys(), batch.values(), strict=True):
                try:
                    owner = decode_owner(key or b"")
                    if value is None:
                        found.pop(owner, None)
                    else:
                        found[owner] = decode_state(value)
                except ValueError as error:
                    _log.error("a record of %s is left alone: %s", TRANSACTIONS_TOPIC, error)
        return found

    # -- staged batches

    def append_staged(
        self, key: StagedKey, batch: bytes, now_ms: int
    ) -> tuple[Staged, asyncio.Future[AppendResult]]:
        """The staged batch, and when it is on disk."""
        place = key.place
        partitions = self._broker.topic(STAGED_TOPIC).partitions
        number = (partition_of(place.owner.name.encode(), partitions) + place.task) % partitions
        log = self._broker.partition(STAGED_TOPIC, number)
        outer = encode(Columns([batch], [encode_staged_key(key)]), now_ms=now_ms)
        offset = log.log_end_offset
        future = log.append(outer, read_header(outer), Acks.REPLICATED)
        return Staged(key, number, offset, len(outer)), future

    async def load_staged(self) -> AsyncIterator[Staged]:
        async for number, batch in batches_of(self._broker, STAGED_TOPIC):
            for key, value, offset in zip(
                batch.keys(), batch.values(), batch.offsets(), strict=True
            ):
                try:
                    decoded = decode_staged_key(key or b"")
                except ValueError as error:
                    _log.error("a record of %s is left alone: %s", STAGED_TOPIC, error)
                    continue
                size = len(value or b"") + len(key or b"")
                yield Staged(decoded, number, offset, size, durable=True)

    async def read_staged(self, entry: Entry) -> bytes:
        """The batch as it was staged. CorruptLog, OffsetOutOfRange: it can't be read."""
        log = self._broker.partition(STAGED_TOPIC, entry.log_partition)
        got = await log.fetch(Offset(entry.offset), bytes_max=1)
        for value, offset in rows_of(got.data, STAGED_TOPIC, entry.log_partition):
            if offset == entry.offset and value is not None:
                return value
        raise CorruptLog(f"{STAGED_TOPIC}-{entry.log_partition} has no batch at {entry.offset}")

    async def free(self, lowest_offsets: Callable[[], Mapping[int, int]]) -> None:
        """Give up the disk below the lowest offsets that are needed; no entry: all."""
        if not is_there(self._broker, STAGED_TOPIC):
            return
        logs = [
            self._broker.partition(STAGED_TOPIC, number)
            for number in range(self._broker.topic(STAGED_TOPIC).partitions)
        ]
        # Both of the same moment: what is staged while one is freed lies behind its end of now.
        ends, lowest = [log.high_watermark for log in logs], lowest_offsets()
        for number, log in enumerate(logs):
            before = min(lowest.get(number, ends[number]), ends[number])
            if before > log.log_start_offset:
                try:
                    await log.delete_records(Offset(before))
                except LakeMQError as error:
                    _log.warning("%s-%d is not freed: %s", STAGED_TOPIC, number, error)


async def batches_of(broker: Broker, topic: str) -> AsyncIterator[tuple[int, RecordBatch]]:
    """(partition, batch) of all that a topic holds, in order within each; nothing: it is absent.
    Batches that are corrupt inside are left out."""
    if not is_there(broker, topic):
        return
    for number in range(broker.topic(topic).partitions):
        log = broker.partition(topic, number)
        offset = log.log_start_offset
        while (got := await log.fetch(offset, bytes_max=_READ_BYTES)).data:
            for batch in readable_batches(got.data, topic, number, start=offset):
                yield number, batch
            offset = got.next_offset


def is_there(broker: Broker, topic: str) -> bool:
    try:
        broker.topic(topic)
    except UnknownTopic:
        return False
    return True


def rows_of(data: bytes, topic: str, partition: int) -> list[tuple[bytes | None, int]]:
    """(value, offset) of all records in fetched batches."""
    rows: list[tuple[bytes | None, int]] = []
    for batch in readable_batches(data, topic, partition):
        rows += zip(batch.values(), batch.offsets(), strict=True)
    return rows
