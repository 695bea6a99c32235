"""State of queues on disk: the topic `_lakemq_queues`, written here and read back at start."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Final

from broker_core.api.errors import TopicExists
from broker_core.api.partitioner import partition_of
from broker_core.api.ports import Broker
from broker_core.api.record_batch import encode, read_header
from broker_core.api.types import Acks, Columns
from plugins.native.own_records import records_of
from plugins.native.queues.settings import QueueSettings, decode_settings, encode_settings
from plugins.native.queues.snapshot import (
    QUEUES_TOPIC,
    QueueKey,
    Snapshot,
    decode_key,
    decode_snapshot,
    encode_key,
    encode_snapshot,
)

_log = logging.getLogger("lakemq.native")
_PARTITIONS: Final = 4


class QueueStore:
    """Keeps settings and snapshots; the newest record of a key is what holds."""

    def __init__(self, broker: Broker) -> None:
        self.settings: dict[tuple[str, str], QueueSettings] = {}
        """(group, topic) -> settings, as read at start."""
        self.snapshots: dict[QueueKey, Snapshot] = {}
        """As read at start."""
        self._broker = broker

    async def load(self) -> None:
        """Read the topic, if it is there."""
        async for key, value in records_of(self._broker, QUEUES_TOPIC):
            self._apply(key or b"", value)

    def _apply(self, data: bytes, value: bytes | None) -> None:
        try:
            key = decode_key(data)
            queue = (key.group, key.topic)
            if key.partition < 0:
                self.settings.pop(queue, None)
                if value is not None:
                    self.settings[queue] = decode_settings(value)
            else:
                self.snapshots.pop(key, None)
                if value is not None:
                    self.snapshots[key] = decode_snapshot(value)
        except ValueError as error:
            _log.warning("a record of %s is not ours to read: %s", QUEUES_TOPIC, error)

    async def keep(self, key: QueueKey, state: QueueSettings | Snapshot | None) -> None:
        """Returns when it is on disk; None forgets. Raises what the append fails with."""
        await self._ensure_topic()
        value = None
        if isinstance(state, QueueSettings):
            value = encode_settings(state)
        elif state is not None:
            value = encode_snapshot(state)
        place = f"{key.group}\0{key.topic}".encode()
        partition = partition_of(place, self._broker.topic(QUEUES_TOPIC).partitions)
        batch = encode(Columns([value], [encode_key(key)]), now_ms=time.time_ns() // 1_000_000)
        log = self._broker.partition(QUEUES_TOPIC, partition)
        await log.append(batch, read_header(batch), Acks.LEADER)

    async def _ensure_topic(self) -> None:
        if any(topic.name == QUEUES_TOPIC for topic in self._broker.topics()):
            return
        config = replace(
            self._broker.topic_defaults(),
            cleanup="compact",
            retention_ms=None,
            retention_bytes=None,
            segment_bytes_max=16 * 1024 * 1024,
        )
        try:
            await self._broker.create_topic(QUEUES_TOPIC, _PARTITIONS, config)
        except TopicExists:  # another queue was quicker
            await self._broker.ensure_topic(QUEUES_TOPIC)
