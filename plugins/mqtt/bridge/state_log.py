"""What each link must not forget: one record a link in the state topic `__bridge`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from lakemq.broker_core.api.errors import CorruptLog
from lakemq.broker_core.api.ports import Broker
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.types import Principal

STATES: Final = "__bridge"
US: Final = Principal("bridge", "node")
VERSION: Final = 1


class StateLog:
    """The states of all links."""

    def __init__(self, broker: Broker) -> None:
        self._topic = StateTopic(broker, STATES)

    async def read(self) -> dict[str, dict[str, Any]]:
        """Link name -> its newest state. Creates the topic if it is absent. CorruptLog when a
        state cannot be read: starting without it would repeat or lose records."""
        await self._topic.ensure()
        return {
            name: _decoded(name, record.value)
            for key, record in (await self._topic.load()).items()
            if record.value and (name := key.decode(errors="replace"))
        }

    async def write(self, name: str, state: Callable[[], dict[str, Any]]) -> None:
        """Returns when the state is on disk. Raises what the append failed with."""
        value = json.dumps({"version": VERSION, **state()}, separators=(",", ":")).encode()
        await self._topic.put(name.encode(), value)


def _decoded(name: str, value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
        if found["version"] != VERSION:
            raise ValueError(f"its version is {found['version']!r}; this program reads {VERSION}")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(f"{STATES}: state of link {name!r}: {error}") from None
    if not isinstance(found, dict):
        raise CorruptLog(f"{STATES}: state of link {name!r} is not a JSON object")
    return found
