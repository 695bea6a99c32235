"""Committed offsets on disk: the topic `_lakemq_offsets`, which the nodes of a cluster share.

All of a group is in one partition. The node that leads it is the group's coordinator: it has read
the partition back, and alone writes to it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from lakemq.broker_core.api.groups.types import OffsetToCommit
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.transactions.types import Owner
from lakemq.broker_core.api.types import Acks, TopicPartition
from lakemq.broker_core.groups.held_offsets import (
    KEY,
    HeldOffsets,
    HeldTable,
    decode_held,
    decode_held_key,
)
from lakemq.broker_core.groups.offset_table import (
    OFFSETS_TOPIC,
    Committed,
    OffsetTable,
    encode_entries,
)

_PARTITIONS = 8


class StoredOffsets(NamedTuple):
    """What one partition holds."""

    table: OffsetTable
    held: dict[tuple[str, Owner], HeldOffsets]

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take one record, in offset order. ValueError: it is not of this version, and changes
        nothing."""
        if key[:1] != bytes((KEY,)):
            self.table.apply(key, value)
        elif value is None:
            self.held.pop(decode_held_key(key), None)
        else:
            held = decode_held(value)
            if held.commit is None:
                raise ValueError("held offsets without a commit")
            self.held[decode_held_key(key)] = held


class OffsetLog:
    """The table of committed offsets and the topic it is kept in."""

    def __init__(self, broker: Broker) -> None:
        self.table = OffsetTable()
        self.held = HeldTable(self.table)
        self._broker = broker
        # Whatever `[topics]` sets: what was committed once must not be taken back by a failover.
        self.topic = StateTopic(broker, OFFSETS_TOPIC, partitions=_PARTITIONS, acks=Acks.REPLICATED)

    async def ensure(self) -> None:
        """Create the topic if it is absent. Raises what `Broker.create_topic` does."""
        await self.topic.ensure()

    def partition_of(self, group: str) -> int | None:
        """The partition that keeps the group; None: the topic is not there yet."""
        info = self.topic.info
        return None if info is None else partition_of(group.encode(), info.partitions)

    async def load(self, partition: int, end: int) -> StoredOffsets:
        """What a partition holds below offset `end`. Raises as `StateTopic.restore_partition`."""
        found = StoredOffsets(OffsetTable(), {})
        await self.topic.restore_partition(partition, end, found.apply)
        return found

    def take(self, found: StoredOffsets, now_ms: int) -> None:
        """Hold what `load` gave. `now_ms`: a monotonic time."""
        self.table.merge(found.table)
        for held in found.held.values():
            self.held.hold(held, now_ms, stored=True)

    def drop(self, partition: int) -> None:
        """Forget what a partition holds."""

        def gone(group: str) -> bool:
            return self.partition_of(group) in (partition, None)

        self.held.forget(gone)
        self.table.forget(gone)

    async def commit(
        self, group: str, epoch: int, offsets: Mapping[TopicPartition, OffsetToCommit]
    ) -> None:
        """Keep offsets (and metadata), all or none; -1 deletes. Returns when they are on the
        disks of all in-sync replicas.

        The table has them at once, while they are still being written: who is assigned a partition
        next starts after what was committed. Raises UnknownTopic and what the append fails with.
        """
        changes = self.changes(group, epoch, offsets)
        if changes:
            self.table.put(group, changes)
            await self.write(group, changes)

    def changes(
        self, group: str, epoch: int, offsets: Mapping[TopicPartition, OffsetToCommit]
    ) -> dict[TopicPartition, Committed | None]:
        """What committing them would put into the table. Raises UnknownTopic."""
        now_ms = time.time_ns() // 1_000_000
        changes: dict[TopicPartition, Committed | None] = {}
        for partition, (offset, metadata) in offsets.items():
            if offset < 0:
                if partition in self.table.of(group):
                    changes[partition] = None
                continue
            topic_id = self._broker.topic(partition.topic).topic_id
            changes[partition] = Committed(offset, epoch, now_ms, topic_id, metadata)
        return changes

    async def delete(self, group: str) -> None:
        """Delete everything that the group committed."""
        await self.commit(group, 0, dict.fromkeys(self.table.of(group), OffsetToCommit(-1)))

    async def write(self, group: str, changes: Mapping[TopicPartition, Committed | None]) -> None:
        """Returns when they are on disk, all of them or none. Raises what the append fails with."""
        await self.write_entries(group, encode_entries(group, changes))

    async def write_entries(self, group: str, entries: Mapping[bytes, bytes | None]) -> None:
        """As `write`, of records about the group."""
        await self.ensure()
        # All offsets of a group are in one partition, so that one batch holds a commit: all or
        # none.
        await self.topic.write(entries, partition=self.topic.partition_of(group.encode()))
