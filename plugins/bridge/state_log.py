"""What each link must not forget: one record a link in the compacted topic `__bridge`. Edge."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from broker_core.api.errors import CorruptLog, LakeMQError, TopicExists
from broker_core.api.ports import Broker
from broker_core.api.stored_batches import readable_batches
from broker_core.api.types import Columns, Principal

STATES: Final = "__bridge"
US: Final = Principal("bridge", "node")
VERSION: Final = 1
_SEGMENT_BYTES: Final = 16 * 1024 * 1024
_FETCH_BYTES: Final = 1024 * 1024


class StateLog:
    """The topic of states."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def read(self) -> dict[str, dict[str, Any]]:
        """Link name -> its newest state. Creates the topic if it is not there. CorruptLog when a
        state cannot be read: to begin anew would repeat or lose records."""
        await self._create()
        log = self._broker.partition(STATES, 0)
        newest: dict[str, bytes | None] = {}
        offset = log.log_start_offset
        while offset < log.high_watermark:
            got = await log.fetch(offset, bytes_max=_FETCH_BYTES)
            for batch in readable_batches(got.data, STATES, 0):
                for key, value in zip(batch.keys(), batch.values(), strict=True):
                    newest[(key or b"").decode(errors="replace")] = value
            offset = got.next_offset
        return {name: _decoded(name, value) for name, value in newest.items() if value}

    async def _create(self) -> None:
        if any(topic.name == STATES for topic in self._broker.topics()):
            return
        config = replace(
            self._broker.topic_defaults(),
            cleanup="compact",
            retention_ms=None,
            retention_bytes=None,
            segment_bytes_max=_SEGMENT_BYTES,
        )
        try:
            await self._broker.create_topic(STATES, 1, config)
        except TopicExists:
            await self._broker.ensure_topic(STATES)

    async def write(self, name: str, state: Callable[[], dict[str, Any]]) -> None:
        """Returns when the state is durable. Raises what the append failed with."""
        value = json.dumps({"version": VERSION, **state()}, separators=(",", ":")).encode()
        columns = Columns([value], [name.encode()])
        (outcome,) = await self._broker.publish(STATES, columns, principal=US)
        if isinstance(outcome, LakeMQError):
            raise outcome


def _decoded(name: str, value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
        if found["version"] != VERSION:
            raise ValueError(f"its version is {found['version']!r}; this program reads {VERSION}")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(f"{STATES}: state of link {name!r}: {error}") from None
    if not isinstance(found, dict):
        raise CorruptLog(f"{STATES}: state of link {name!r} is no object")
    return found
