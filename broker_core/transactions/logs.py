"""The coordinator's own topics: owners' states, and the batches that wait for a commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.transactions.types import Owner
from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.broker_core.transactions.formats import (
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
from lakemq.broker_core.transactions.staged import Staged
from lakemq.broker_core.transactions.state import OwnerState, StagedRef

_log = logging.getLogger(__name__)

PARTITIONS: Final = 4


class OwnerStates:
    """The newest state of each owner, on disk."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topic = StateTopic(
            broker,
            TRANSACTIONS_TOPIC,
            partitions=PARTITIONS,
            acks=Acks.REPLICATED,
            large_values=True,
        )

    async def ensure(self) -> None:
        """Create the topic of transactions if there is none."""
        await self._topic.ensure()

    def check_home(self, owner: Owner) -> None:
        """One node alone may act for an owner: NotLeader names it."""
        number = self._topic.partition_of(encode_owner(owner))
        self._broker.check_leads(TRANSACTIONS_TOPIC, number, f"the home of {owner}")

    def append(self, owner: Owner, state: OwnerState | None) -> asyncio.Future[AppendResult]:
        """`None` deletes the owner. Done when it is on disk."""
        key = encode_owner(owner)
        value = None if state is None else encode_state(state)
        return self._topic.write({key: value}, partition=self._topic.partition_of(key))

    async def load(self) -> dict[Owner, OwnerState]:
        """The states of all owners; a state that cannot be decoded leaves the one before."""
        found: dict[Owner, OwnerState] = {}
        async for record in self._topic.records():
            try:
                owner = decode_owner(record.key)
                if record.value is None:
                    found.pop(owner, None)
                else:
                    found[owner] = decode_state(record.value)
            except ValueError as error:
                self._topic.skip(record, error)
        return found


class StagedBatches:
    """Batches that wait for their commit, on disk: read by offset, freed when no commit needs them
    (so this topic is not compacted)."""

    def __init__(self, broker: Broker) -> None:
        self._topic = StateTopic(
            broker,
            STAGED_TOPIC,
            partitions=PARTITIONS,
            acks=Acks.REPLICATED,
            large_values=True,
            compacted=False,
        )

    async def ensure(self) -> None:
        """Create the topic of staged batches if there is none."""
        await self._topic.ensure()

    def append(self, key: StagedKey, batch: bytes) -> tuple[Staged, asyncio.Future[AppendResult]]:
        """The staged batch, and when it is on disk."""
        data, place = encode_staged_key(key), key.place
        partitions = self._partitions()
        # Tasks of one owner are spread, so that one large job uses all partitions.
        number = (self._topic.partition_of(place.owner.name.encode()) + place.task) % partitions
        # The offset that the record is about to get, as one node alone appends here; the
        # coordinator compares it when the append is done.
        offset = self._topic.log(number).log_end_offset
        future = self._topic.put(data, batch, partition=number)
        return Staged(key, number, offset, len(data) + len(batch)), future

    async def load(self) -> AsyncIterator[Staged]:
        """Every staged batch on disk, in the order of offsets of each partition."""
        async for record in self._topic.records():
            try:
                key = decode_staged_key(record.key)
            except ValueError as error:
                self._topic.skip(record, error)
                continue
            size = len(record.value or b"") + len(record.key)
            yield Staged(key, record.partition, record.offset, size, durable=True)

    async def read(self, entry: StagedRef) -> bytes:
        """The batch as it was staged. CorruptLog, OffsetOutOfRange: it cannot be read."""
        return await self._topic.value_at(entry.log_partition, entry.offset)

    async def free(self, lowest_offsets: Callable[[], Mapping[int, int]]) -> None:
        """Give up the disk below the lowest offsets that are needed; no entry: all."""
        logs = [self._topic.log(number) for number in range(self._partitions())]
        # Both of the same moment: what is staged while one is freed has an offset above its end.
        ends, lowest = [log.high_watermark for log in logs], lowest_offsets()
        for number, log in enumerate(logs):
            before = min(lowest.get(number, ends[number]), ends[number])
            if before > log.log_start_offset:
                try:
                    await log.delete_records(Offset(before))
                except LakeMQError as error:
                    _log.warning("%s-%d is not freed: %s", STAGED_TOPIC, number, error)

    def _partitions(self) -> int:
        info = self._topic.info
        return 0 if info is None else info.partitions
