"""One consumer of a queue, as the broker sees it: a bounded buffer of responses to its stream."""

from __future__ import annotations

import asyncio
from collections import deque

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.plugins.native.proto import queues_pb2 as pb


class QueueConsumer:
    """Buffers answers and at most one delivery, so that a consumer that does not read holds no
    memory of the broker."""

    def __init__(self, number: int, prefetch: int) -> None:
        self.number = number
        self.prefetch = prefetch
        self.served = 0
        """Turn of its queue in which it last got records."""
        self.is_open = True
        self.failure: LakeMQError | None = None
        self._waiting: deque[pb.QueueResponse] = deque()
        self._delivery_waits = False
        self._changed = asyncio.Event()

    @property
    def takes_deliveries(self) -> bool:
        """Whether a delivery may be buffered: at most one is."""
        return self.is_open and not self._delivery_waits

    def send(self, response: pb.QueueResponse) -> None:
        """Buffer a response for the stream."""
        if response.HasField("delivery"):
            self._delivery_waits = True
        self._waiting.append(response)
        self._changed.set()

    def end(self, failure: LakeMQError | None = None) -> None:
        """Send nothing after what is buffered; the stream then fails with `failure`, if any."""
        self.is_open = False
        self.failure = self.failure or failure
        self._changed.set()

    async def next(self) -> pb.QueueResponse | None:
        """The next response; None: there are no more."""
        while not self._waiting:
            if not self.is_open:
                return None
            self._changed.clear()
            await self._changed.wait()
        response = self._waiting.popleft()
        if response.HasField("delivery"):
            # The stream has room again; the pump is woken by the caller
            # (`QueueService.ConsumeQueue`).
            self._delivery_waits = False
        return response
