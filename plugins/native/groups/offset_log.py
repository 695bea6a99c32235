"""Committed offsets on disk: the state topic `_lakemq_offsets`, read back at start."""

from __future__ import annotations

import time
from collections.abc import Mapping

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import TopicPartition
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
        self._topic = StateTopic(broker, OFFSETS_TOPIC, partitions=_PARTITIONS)

    async def load(self) -> None:
        """Read the topic, if it is there."""
        await self._topic.restore(self.table.apply)

    async def commit(
        self, group: str, epoch: int, offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> None:
        """Keep offsets (and metadata), all or none; -1 deletes. Returns when they are on disk.

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
        await self._topic.ensure()
        entries = {
            encode_key(OffsetKey(group, partition)): None if each is None else encode_value(each)
            for partition, each in changes.items()
        }
        # All offsets of a group are in one partition, so that one batch holds a commit: all or
        # none.
        await self._topic.write(entries, partition=self._topic.partition_of(group.encode()))
