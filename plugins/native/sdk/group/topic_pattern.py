"""Topics that a consumer subscribes to by pattern: looked for now and then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress

from lakemq.broker_core.api.errors import InvalidRequest, LakeMQError
from lakemq.plugins.native.sdk.net.connection import Connection


class TopicPattern:
    """Calls `on_topics` with the names of all topics that match, whenever they have changed."""

    def __init__(
        self,
        connection: Connection,
        pattern: str,
        interval_ms: int,
        on_topics: Callable[[list[str]], None],
    ) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise InvalidRequest(f"pattern {pattern!r}: {error}") from None
        if interval_ms < 1:
            raise InvalidRequest(f"pattern_interval_ms is {interval_ms}; it takes 1 and more")
        self._connection = connection
        self._interval_s = interval_ms / 1000
        self._on_topics = on_topics
        self._known: list[str] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look once, then now and then. Raises what the first look fails with."""
        await self._look()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            with suppress(LakeMQError):  # the broker may be away; the next look tells
                await self._look()

    async def _look(self) -> None:
        found = [
            topic.name
            for topic in await self._connection.topics()
            if self._pattern.fullmatch(topic.name) and not topic.is_internal
        ]
        if found != self._known:
            self._known = found
            self._on_topics(found)
