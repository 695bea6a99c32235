"""What owners have staged and decided, on disk: one log for each coordinator.

States of owners and their staged batches are records of the same partition of the topic of staged
batches, in the order in which they took effect. So they are led together, and a node that comes to
lead reads both back as they were at one moment. The topic is not compacted: what lies below the
lowest offset that is still needed is deleted, after the states that lie there were written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.transactions.types import Owner, StagedBatchId
from lakemq.broker_core.api.types import Acks, AppendResult, Offset
from lakemq.broker_core.transactions.formats import (
    FLOOR_KEY,
    SCHEDULER,
    STAGED_TOPIC,
    StagedKey,
    decode_floor,
    decode_record_key,
    decode_state,
    encode_floor,
    encode_owner,
    encode_staged_key,
    encode_state,
)
from lakemq.broker_core.transactions.logs import PARTITIONS, OwnerStates
from lakemq.broker_core.transactions.staged import Staged
from lakemq.broker_core.transactions.state import OwnerState, StagedRef

_log: Final = logging.getLogger(__name__)
_STATES_AT_ONCE: Final = 1_000
"""Written as one batch when the log is freed: names are short, and nothing of theirs is pending."""


@dataclass(slots=True)
class StoredOwners:
    """What one partition holds."""

    states: dict[Owner, tuple[OwnerState, int]] = field(default_factory=dict)
    """With the offset of the newest record."""
    staged: list[Staged] = field(default_factory=list)
    """In order of offsets; those that no commit can name any more are left out."""


class OwnerLog:
    """States and staged batches of the owners that this node coordinates."""

    def __init__(self, broker: Broker) -> None:
        self.topic = StateTopic(
            broker,
            STAGED_TOPIC,
            partitions=PARTITIONS,
            acks=Acks.REPLICATED,
            large_values=True,
            compacted=False,
        )
        self._former = OwnerStates(broker)

    async def ensure(self) -> None:
        """Create the topic if there is none."""
        await self.topic.ensure()

    def partition_of(self, owner: Owner) -> int | None:
        """The partition of everything about an owner; None: there is no topic yet."""
        info = self.topic.info
        return None if info is None else partition_of(encode_owner(owner), info.partitions)

    def partitions(self) -> range:
        """Of the topic; none as long as there is none."""
        info = self.topic.info
        return range(0 if info is None else info.partitions)

    # -- writing

    def append(self, owner: Owner, state: OwnerState | None) -> asyncio.Future[AppendResult]:
        """`None` deletes the owner. Done when it is on the disks of all in-sync replicas."""
        key = encode_owner(owner)
        value = None if state is None else encode_state(state)
        return self.topic.write({key: value}, partition=self.topic.partition_of(key))

    def append_batch(
        self, key: StagedKey, batch: bytes
    ) -> tuple[Staged, asyncio.Future[AppendResult]]:
        """The staged batch, and when it is on the disks of all in-sync replicas."""
        data = encode_staged_key(key)
        number = self.topic.partition_of(encode_owner(key.place.owner))
        # The offset that the record is about to get, as one node alone appends here; the
        # coordinator compares it when the append is done.
        offset = self.topic.log(number).log_end_offset
        future = self.topic.put(data, batch, partition=number)
        return Staged(key, number, offset, len(data) + len(batch)), future

    async def free(self, partition: int, floor: int, moved: Mapping[Owner, OwnerState]) -> int:
        """Give up what lies below `floor`, but for the states of `moved`, which are written again;
        the offset from which on they lie. Raises what an append fails with."""
        # Who leads next reads the floor, and takes nothing below it for staged: with a log that
        # still has it, it could decide what other replicas have deleted.
        entries: dict[bytes, bytes | None] = {FLOOR_KEY: encode_floor(floor)}
        first = self.topic.log(partition).log_end_offset
        writes = []
        for owner, state in moved.items():
            entries[encode_owner(owner)] = encode_state(state)
            if len(entries) == _STATES_AT_ONCE:
                writes.append(self.topic.write(entries, partition=partition))
                entries = {}
        if entries:
            writes.append(self.topic.write(entries, partition=partition))
        await asyncio.gather(*writes)
        await self.topic.log(partition).delete_records(Offset(floor))
        return first

    # -- reading

    async def load(self, partition: int, end: int) -> StoredOwners:
        """What a partition holds, once all below offset `end` is committed. Raises LakeMQError."""
        found, floor, staged = StoredOwners(), 0, []
        async for record in self.topic.records_of(partition, end):
            try:
                if record.key == FLOOR_KEY:
                    floor = max(floor, decode_floor(record.value or b""))
                    continue
                key = decode_record_key(record.key)
                if isinstance(key, StagedKey):
                    size = len(record.value or b"") + len(record.key)
                    staged.append(Staged(key, partition, record.offset, size, durable=True))
                elif record.value is None:
                    found.states.pop(key, None)
                else:
                    found.states[key] = decode_state(record.value), record.offset
            except ValueError as error:
                self.topic.skip(record, error)
        await self._take_former(partition, found)
        found.staged = [
            each
            for each in staged
            if each.offset >= floor and _is_needed(found, each.key.place)
        ]  # fmt: skip
        return found

    async def _take_former(self, partition: int, found: StoredOwners) -> None:
        """States of owners lay in the topic of transactions once, which is this node's own: those
        of this partition are written here, and deleted there."""
        former = {
            owner: state
            for owner, state in (await self._former.load()).items()
            if owner.kind != SCHEDULER and self.partition_of(owner) == partition
        }
        for owner, state in former.items():
            if owner not in found.states:
                result = await self.append(owner, state)
                found.states[owner] = state, int(result.base_offset)
        for owner in former:
            await self._former.append(owner, None)
        if former:
            _log.info("%s-%d: took %d owners over", STAGED_TOPIC, partition, len(former))

    async def read(self, entry: StagedRef) -> bytes:
        """The batch as it was staged. CorruptLog, OffsetOutOfRange: it cannot be read."""
        return await self.topic.value_at(entry.log_partition, entry.offset)


def _is_needed(found: StoredOwners, place: StagedBatchId) -> bool:
    """Whether a commit may still name it, or is being applied that does."""
    known = found.states.get(place.owner)
    return known is not None and known[0].needs(place)
