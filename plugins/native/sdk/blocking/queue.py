"""A consumer of a queue for blocking programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.sdk.blocking.loop_runner import Facade, blocking
from lakemq.plugins.native.sdk.queue.queue import Queue
from lakemq.plugins.native.sdk.queue.record import QueueMessage


class SyncQueueMessage(Facade[QueueMessage]):
    """As `QueueMessage`, but settling blocks."""

    __slots__ = ()

    ack = blocking(QueueMessage.ack)
    nack = blocking(QueueMessage.nack)
    release = blocking(QueueMessage.release)
    reject = blocking(QueueMessage.reject)
    extend = blocking(QueueMessage.extend)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def message(self) -> QueueMessage:
        """The message itself, for `SyncQueue.ack`."""
        return self._inner

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def partition(self) -> int:
        return self._inner.partition

    @property
    def offset(self) -> int:
        return self._inner.offset

    @property
    def timestamp_ms(self) -> int:
        return self._inner.timestamp_ms

    @property
    def key(self) -> bytes | None:
        return self._inner.key

    @property
    def value(self) -> bytes | None:
        return self._inner.value

    @property
    def headers(self) -> Headers:
        return self._inner.headers

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self._inner.attempt


class SyncQueue(Facade[Queue]):
    """Made by `SyncClient.queue`; use it as a context manager. Iterate it for messages."""

    def __enter__(self) -> Self:
        self._call(Queue.open)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(Queue.close)

    def __iter__(self) -> Iterator[SyncQueueMessage]:
        while True:
            yield from self.next_batch()

    def next_batch(self, count: int = 1) -> list[SyncQueueMessage]:
        """As `Queue.next_batch`: waits for one message, and takes up to `count` that are there."""
        found = self._call(lambda inner: inner.next_batch(count))
        return [SyncQueueMessage(self._runner, message) for message in found]

    def ack(self, messages: Iterable[SyncQueueMessage]) -> None:
        """As `Queue.ack`: settle many at once."""
        settled = [each.message for each in messages]
        self._call(lambda inner: inner.ack(settled))
