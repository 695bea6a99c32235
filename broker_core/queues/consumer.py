"""One consumer of a queue, as the broker sees it: a bounded buffer of what its stream says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.queues.types import QueueDelivery, QueueSettings, Settlement
from lakemq.broker_core.api.types import TopicInfo

Ranges = Iterable[tuple[int, int]]
Settled = tuple[list[tuple[int, int]], asyncio.Future[None] | None]
"""(ranges of offsets that the consumer does not hold, what to await before that is answered)."""


class ConsumedQueue(Protocol):
    """What a consumer does with its queue."""

    settings: QueueSettings
    topic: TopicInfo

    def wake(self) -> None:
        """The consumer has room again."""

    def leave(self, consumer: QueueConsumer) -> None:
        """Release what the consumer holds."""

    def settle(
        self,
        consumer: QueueConsumer,
        partition: int,
        ranges: Ranges,
        settlement: Settlement,
        delay_ms: int,
    ) -> Settled:
        """As `QueueConsumer.settle` of the port."""


class QueueConsumer:
    """Implements the port `QueueConsumer`. Buffers answers and at most one delivery, so that a
    consumer that does not read holds no memory of the broker."""

    def __init__(self, number: int, prefetch: int, queue: ConsumedQueue) -> None:
        self.number = number
        self.prefetch = prefetch
        self.served = 0
        """Turn of its queue in which it last got records."""
        self.is_open = True
        self.failure: LakeMQError | None = None
        self._queue = queue
        self._waiting: deque[object] = deque()
        self._delivery_waits = False
        self._has_delivery = False
        self._changed = asyncio.Event()

    @property
    def settings(self) -> QueueSettings:
        """As in the port."""
        return self._queue.settings

    @property
    def topic_id(self) -> str:
        """As in the port."""
        return self._queue.topic.topic_id

    @property
    def takes_deliveries(self) -> bool:
        """Whether a delivery may be buffered: at most one is."""
        return self.is_open and not self._delivery_waits

    def send(self, answer: object) -> None:
        """As in the port; deliveries too."""
        if isinstance(answer, QueueDelivery):
            self._delivery_waits = True
        self._waiting.append(answer)
        self._changed.set()

    def end(self, failure: LakeMQError | None = None) -> None:
        """As in the port."""
        self.is_open = False
        self.failure = self.failure or failure
        self._changed.set()

    def close(self) -> None:
        """As in the port."""
        self.end()
        self._queue.leave(self)

    def settle(
        self, partition: int, ranges: Ranges, settlement: Settlement, delay_ms: int = -1
    ) -> Settled:
        """As in the port."""
        return self._queue.settle(self, partition, ranges, settlement, delay_ms)

    async def next(self) -> object:
        """As in the port."""
        if self._has_delivery:  # it was taken, so the consumer may get the next one
            self._has_delivery = False
            self._queue.wake()
        while not self._waiting:
            if not self.is_open:
                return None
            self._changed.clear()
            await self._changed.wait()
        said = self._waiting.popleft()
        if isinstance(said, QueueDelivery):
            self._delivery_waits, self._has_delivery = False, True
        return said
