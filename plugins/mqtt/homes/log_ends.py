"""Where partitions end, as their leaders know. Edge: asks leaders.

An owner that is gone may have sent publishes that are in a leader's log and not committed yet. Who
gets its sessions goes as far as that before it lets their clients in. Often the node that is gone
has led some of the partitions, too: their next leader answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import Broker
from lakemq.plugins.mqtt.routing.hub import Hub
from lakemq.plugins.mqtt.state.sessions import Positions

ENDS_S: Final = 3.0
"""How long it may take in all: longer than to notice that a leader is gone (2 s), and to have
another one."""
ROUND_S: Final = 0.1
"""Who asks within it shares the answers: all clients of a node that is gone may come at once."""


async def _nothing() -> None:
    """There is nothing to wait for."""


class LogEnds:
    """Of the partitions that a hub delivers from. Lives on the event loop."""

    def __init__(
        self, hub: Hub, broker: Broker, begin: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        """`begin` runs a task until the plugin stops."""
        self.reach: Callable[[], Awaitable[None]] = _nothing
        """Returns when this node knows which publishes are delayed, before `ENDS_S`."""
        self._hub = hub
        self._broker = broker
        self._begin = begin
        self._next: asyncio.Future[Positions] | None = None
        """What those get who have asked, of a round that has not begun."""

    async def find(self) -> Positions:
        """None of partitions that can't be asked in time."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._begin(self._ask(self._next))
        return await asyncio.shield(self._next)

    async def _ask(self, found: asyncio.Future[Positions]) -> None:
        await asyncio.sleep(ROUND_S)
        self._next = None  # who comes from now on has to hear of what is appended until then
        until_s = asyncio.get_running_loop().time() + ENDS_S
        await self.reach()  # first: what is not delayed any more by then is in a partition
        keys = list(self._hub.positions)
        ends = await asyncio.gather(*(self._end(key, until_s) for key in keys))
        found.set_result({key: end for key, end in zip(keys, ends, strict=True) if end is not None})

    async def _end(self, key: tuple[str, int], until_s: float) -> int | None:
        with contextlib.suppress(LakeMQError, TimeoutError):
            async with asyncio.timeout_at(until_s):
                return await self._broker.reader(*key).log_end()
        return None
