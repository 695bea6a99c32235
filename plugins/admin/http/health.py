"""`/readyz` without a walk over all partitions: the walk is made in the background, in slices, when
it is asked for and the last one is old; a request is answered by what the last one found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from lakemq.broker_core.api.administration.node import CatalogAccess
from lakemq.broker_core.api.errors import LakeMQError

STRIDE: Final = 200
"""Partitions that are looked at before others have their turn."""
FRESH_MS: Final = 1_000
"""A finding is not looked for again sooner."""
NAMED_MAX: Final = 1_000
"""Partitions that are named."""
_WELL: Final = ("online", "remote")
"""Partitions in state `remote` are another node's to answer for."""
Pause = Callable[[], Awaitable[None]]


class PartitionHealth:
    """The partitions of this node that are not online."""

    def __init__(self, catalog: CatalogAccess, now_ms: Callable[[], int], pause: Pause) -> None:
        self.bad: list[str] = []
        """As the last walk found them, as `topic/number`."""
        self.bad_count = 0
        self._catalog = catalog
        self._now_ms = now_ms
        self._pause = pause
        self._walked_ms: int | None = None
        self._walk: asyncio.Task[None] | None = None

    async def current(self) -> bool:
        """Whether all are well. The first call waits for a walk; later ones begin one if the last
        is old, and answer by the last."""
        if self._walk is None and (
            self._walked_ms is None or self._now_ms() - self._walked_ms >= FRESH_MS
        ):
            self._walk = asyncio.create_task(self._look())
        if self._walked_ms is None:
            await self.settled()
        return not self.bad_count

    async def _look(self) -> None:
        try:
            bad, count, looked = list[str](), 0, 0
            for topic in self._catalog.topics():
                for number in range(topic.partitions):
                    looked += 1
                    if looked % STRIDE == 0:
                        await self._pause()
                    try:
                        status = self._catalog.partition_status(topic.name, number)
                    except LakeMQError:  # deleted meanwhile
                        break
                    if status.state not in _WELL:
                        count += 1
                        bad += [f"{topic.name}/{number}"] if len(bad) < NAMED_MAX else []
            self.bad, self.bad_count, self._walked_ms = bad, count, self._now_ms()
        finally:
            self._walk = None

    async def settled(self) -> None:
        """Until no walk is under way."""
        if self._walk is not None:
            await asyncio.shield(self._walk)

    async def stop(self) -> None:
        """End a walk that is under way."""
        if self._walk is not None:
            self._walk.cancel()
            await asyncio.gather(self._walk, return_exceptions=True)
