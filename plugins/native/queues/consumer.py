"""One consumer of a queue, as the broker sees it: what it is to be told, in order, bounded."""

from __future__ import annotations

import asyncio
from collections import deque

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.plugins.native.proto import queues_pb2 as pb


class Session:
    """What waits for a consumer's stream: answers, and one delivery at most, so that a consumer
    that does not read makes the broker hold nothing."""

    def __init__(self, number: int, prefetch: int) -> None:
        self.number = number
        self.prefetch = prefetch
        self.served = 0
        """In which turn of its queue it was last given something."""
        self.is_open = True
        self.failure: LakeMQError | None = None
        self._waiting: deque[pb.QueueResponse] = deque()
        self._delivery_waits = False
        self._changed = asyncio.Event()

    @property
    def takes_deliveries(self) -> bool:
        return self.is_open and not self._delivery_waits

    def say(self, response: pb.QueueResponse) -> None:
        if response.HasField("delivery"):
            self._delivery_waits = True
        self._waiting.append(response)
        self._changed.set()

    def end(self, failure: LakeMQError | None = None) -> None:
        """No more is said than what waits; then `failure` is raised, if any."""
        self.is_open = False
        self.failure = self.failure or failure
        self._changed.set()

    async def next(self) -> pb.QueueResponse | None:
        """The next thing to say; None: that was all."""
        while not self._waiting:
            if not self.is_open:
                return None
            self._changed.clear()
            await self._changed.wait()
        said = self._waiting.popleft()
        if said.HasField("delivery"):
            self._delivery_waits = False
        return said
