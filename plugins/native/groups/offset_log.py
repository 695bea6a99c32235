"""Committed offsets on disk: the topic `_lakemq_offsets`, which the nodes of a cluster share.

All of a group is in one partition. The node that leads it is the group's coordinator: it has read
the partition back, and alone writes to it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Acks, TopicPartition
from lakemq.plugins.native.groups.offset_table import (
    OFFSETS_TOPIC,
    Committed,
    OffsetKey,
    OffsetTable,
    encode_key,
    encode_value,
)

_PARTITIONS = 8


class OffsetLog:
    """The table of committed offsets and the topic it is kept in."""

    def __init__(self, broker: Broker) -> None:
        self.table = OffsetTable()
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

    async def load(self, partition: int, end: int) -> OffsetTable:
        """What a partition holds below offset `end`. Raises as `StateTopic.restore_partition`."""
        table = OffsetTable()
        await self.topic.restore_partition(partition, end, table.apply)
        return table

    def drop(self, partition: int) -> None:
        """Forget what a partition holds."""
        self.table.forget(lambda group: self.partition_of(group) in (partition, None))

    async def commit(
        self, group: str, epoch: int, offsets: Mapping[TopicPartition, tuple[int, str]]
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
        self, group: str, epoch: int, offsets: Mapping[TopicPartition, tuple[int, str]]
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
        await self.commit(group, 0, dict.fromkeys(self.table.of(group), (-1, "")))

    async def write(self, group: str, changes: Mapping[TopicPartition, Committed | None]) -> None:
        """Returns when they are on disk, all of them or none. Raises what the append fails with."""
        await self.ensure()
        entries = {
            encode_key(OffsetKey(group, partition)): None if each is None else encode_value(each)
            for partition, each in changes.items()
        }
        # All offsets of a group are in one partition, so that one batch holds a commit: all or
        # none.
        await self.topic.write(entries, partition=self.topic.partition_of(group.encode()))
