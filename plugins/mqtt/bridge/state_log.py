"""What each link must not forget: one record a link in the state topic `__bridge`. The node that
leads a link's partition of it runs the link.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from lakemq.broker_core.api.errors import CorruptLog
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.internal_topics import BRIDGES
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Acks, Principal

STATES: Final = BRIDGES
PARTITIONS: Final = 8
"""Of a topic that is new: links are spread over as many leaders at most."""
US: Final = Principal("bridge", "node")
VERSION: Final = 1

Kept = dict[str, Any] | CorruptLog
"""The state of a link, or why it can't be read."""


class StateLog:
    """The states of all links."""

    def __init__(self, broker: Broker) -> None:
        # Whatever `[topics]` sets: the node that takes a link over goes on from here.
        self.topic = StateTopic(broker, STATES, partitions=PARTITIONS, acks=Acks.REPLICATED)

    def partition_of(self, name: str) -> int:
        """The partition whose leader runs the link. Raises UnknownTopic."""
        return self.topic.partition_of(name.encode())

    async def load(self, partition: int, end: int) -> dict[str, Kept]:
        """Link name -> its newest state, of those in one partition. Raises as
        `StateTopic.records_of`."""
        newest: dict[str, bytes] = {}
        async for record in self.topic.records_of(partition, end):
            if record.value:
                newest[record.key.decode(errors="replace")] = record.value
        return {name: _decoded(name, value) for name, value in newest.items()}

    async def write(self, name: str, state: Callable[[], Mapping[str, Any]]) -> None:
        """Returns when the state is on disk, also at the nodes that may take the link over. Raises
        what the append failed with: NotLeader where another node runs the link."""
        value = json.dumps({"version": VERSION, **state()}, separators=(",", ":")).encode()
        await self.topic.put(name.encode(), value, partition=self.partition_of(name))


def _decoded(name: str, value: bytes) -> Kept:
    try:
        found = json.loads(value)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        if found.get("version") != VERSION:
            raise ValueError(
                f"its version is {found.get('version')!r}; this program reads {VERSION}"
            )
    except (ValueError, RecursionError) as error:
        return CorruptLog(f"{STATES}: state of link {name!r}: {error}")
    return found
