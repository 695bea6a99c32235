"""State of queues on disk: the topic `_lakemq_queues`, which the nodes of a cluster share.

All of a queue is in one partition. The node that leads it is the queue's coordinator: it has read
the partition back, and alone writes to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.queues.types import QueueSettings
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Acks
from lakemq.broker_core.queues.settings import decode_settings, encode_settings
from lakemq.broker_core.queues.snapshot import (
    QUEUES_TOPIC,
    QueueKey,
    Snapshot,
    decode_key,
    decode_snapshot,
    encode_key,
    encode_snapshot,
)

_PARTITIONS: Final = 8
QueueName = tuple[str, str]
"""(group, topic)"""


class QueueTable:
    """The queues of one partition."""

    def __init__(self) -> None:
        self.settings: dict[QueueName, QueueSettings] = {}
        self.snapshots: dict[QueueKey, Snapshot] = {}
        """As they were when the partition was read back, or when a queue was stopped."""

    def apply(self, data: bytes, value: bytes | None) -> None:
        """A value that cannot be read takes the older one of its key away: it is not true any
        more. Raises ValueError."""
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

    def forget_snapshots(self, name: QueueName) -> None:
        """Of one queue."""
        for key in [each for each in self.snapshots if each[:2] == name]:
            del self.snapshots[key]


class QueueStore:
    """Keeps settings and snapshots; the newest record of a key counts. A container of the names of
    all queues that this node holds."""

    def __init__(self, broker: Broker) -> None:
        self.tables: dict[int, QueueTable] = {}
        """By partition of the topic: those that this node holds."""
        # What was settled once must not be taken back by a failover.
        self.topic = StateTopic(broker, QUEUES_TOPIC, partitions=_PARTITIONS, acks=Acks.REPLICATED)

    def partition_of(self, name: QueueName) -> int | None:
        """The partition that keeps a queue; None: the topic is not there yet."""
        info = self.topic.info
        key = f"{name[0]}\0{name[1]}".encode()
        return None if info is None else partition_of(key, info.partitions)

    def table_of(self, name: QueueName) -> QueueTable | None:
        """The table that has the queue, if there is such a queue; None: this node holds none that
        could have it."""
        partition = self.partition_of(name)
        return None if partition is None else self.tables.get(partition)

    def names(self) -> list[QueueName]:
        """Of all queues that this node holds, in no order."""
        return [name for table in self.tables.values() for name in table.settings]

    def __iter__(self) -> Iterator[QueueName]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return any(name in table.settings for table in self.tables.values())

    def __len__(self) -> int:
        return sum(len(table.settings) for table in self.tables.values())

    async def load(self, partition: int, end: int) -> QueueTable:
        """What a partition holds below offset `end`. Raises as `StateTopic.restore_partition`."""
        table = QueueTable()
        await self.topic.restore_partition(partition, end, table.apply)
        return table

    async def keep(self, key: QueueKey, state: QueueSettings | Snapshot | None) -> None:
        """Returns when it is on the disks of all in-sync replicas; None deletes. Raises what the
        append fails with, NotLeader among others."""
        await self.topic.ensure()
        partition = self.partition_of(key[:2])
        assert partition is not None
        data = encode_key(key)
        value = None
        if isinstance(state, QueueSettings):
            value = encode_settings(state)
        elif state is not None:
            value = encode_snapshot(state)
        await self.topic.write({data: value}, partition=partition)
