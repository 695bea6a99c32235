"""Committed offsets on disk: the topic `_lakemq_offsets`, written here and read back at start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from broker_core.api.errors import TopicExists
from broker_core.api.partitioner import partition_of
from broker_core.api.ports import Broker
from broker_core.api.record_batch import encode, read_header
from broker_core.api.types import Acks, Columns, TopicPartition
from plugins.native.offset_table import (
    OFFSETS_TOPIC,
    Committed,
    OffsetKey,
    OffsetTable,
    encode_key,
    encode_value,
)
from plugins.native.own_records import records_of

_PARTITIONS = 8


class OffsetLog:
    """The table of committed offsets and the topic it is kept in."""

    def __init__(self, broker: Broker) -> None:
        self.table = OffsetTable()
        self._broker = broker

    async def load(self) -> None:
        """Read the topic, if it is there."""
        async for key, value in records_of(self._broker, OFFSETS_TOPIC):
            self.table.apply(key, value)

    async def commit(
        self, group: str, epoch: int, offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> None:
        """Keep offsets (and metadata), all or none; -1 forgets. Returns when they are on disk.

        The table shows them at once: who gets a partition next begins behind what was committed,
        also while that is being written. Raises UnknownTopic and what the append fails with.
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
        for place, (offset, metadata) in offsets.items():
            if offset < 0:
                if place in self.table.of(group):
                    changes[place] = None
                continue
            topic_id = self._broker.topic(place.topic).topic_id
            changes[place] = Committed(offset, epoch, now_ms, topic_id, metadata)
        return changes

    async def forget(self, group: str) -> None:
        """Forget everything that the group committed."""
        await self.commit(group, 0, dict.fromkeys(self.table.of(group), (-1, "")))

    async def write(self, group: str, changes: Mapping[TopicPartition, Committed | None]) -> None:
        """Returns when they are on disk."""
        await self._ensure_topic()
        now_ms = time.time_ns() // 1_000_000
        partition = partition_of(group.encode(), self._broker.topic(OFFSETS_TOPIC).partitions)
        columns = Columns(
            [None if each is None else encode_value(each) for each in changes.values()],
            [encode_key(OffsetKey(group, place)) for place in changes],
        )
        batch = encode(columns, now_ms=now_ms)
        log = self._broker.partition(OFFSETS_TOPIC, partition)
        await log.append(batch, read_header(batch), Acks.LEADER)

    async def _ensure_topic(self) -> None:
        if any(topic.name == OFFSETS_TOPIC for topic in self._broker.topics()):
            return
        config = replace(
            self._broker.topic_defaults(),
            cleanup="compact",
            retention_ms=None,
            retention_bytes=None,
            segment_bytes_max=16 * 1024 * 1024,
        )
        try:
            await self._broker.create_topic(OFFSETS_TOPIC, _PARTITIONS, config)
        except TopicExists:  # another commit was quicker
            await self._broker.ensure_topic(OFFSETS_TOPIC)
