"""State of queues on disk: the state topic `_lakemq_queues`, written here, read back at start."""

from __future__ import annotations

from typing import Final

from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.plugins.native.queues.settings import QueueSettings, decode_settings, encode_settings
from lakemq.plugins.native.queues.snapshot import (
    QUEUES_TOPIC,
    QueueKey,
    Snapshot,
    decode_key,
    decode_snapshot,
    encode_key,
    encode_snapshot,
)

_PARTITIONS: Final = 4


class QueueStore:
    """Keeps settings and snapshots; the newest record of a key counts."""

    def __init__(self, broker: Broker) -> None:
        self.settings: dict[tuple[str, str], QueueSettings] = {}
        """(group, topic) -> settings, as read at start."""
        self.snapshots: dict[QueueKey, Snapshot] = {}
        """As read at start."""
        self._topic = StateTopic(broker, QUEUES_TOPIC, partitions=_PARTITIONS)

    async def load(self) -> None:
        """Read the topic, if it is there."""
        await self._topic.restore(self._apply)

    def _apply(self, data: bytes, value: bytes | None) -> None:
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

    async def keep(self, key: QueueKey, state: QueueSettings | Snapshot | None) -> None:
        """Returns when it is on disk; None deletes. Raises what the append fails with."""
        await self._topic.ensure()
        partition = self._topic.partition_of(f"{key.group}\0{key.topic}".encode())
        data = encode_key(key)
        value = None
        if isinstance(state, QueueSettings):
            value = encode_settings(state)
        elif state is not None:
            value = encode_snapshot(state)
        await self._topic.write({data: value}, partition=partition)
