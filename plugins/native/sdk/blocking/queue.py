"""A consumer of a queue for blocking programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.sdk.blocking.portal import Facade, blocking
from lakemq.plugins.native.sdk.queue.queue import Queue
from lakemq.plugins.native.sdk.queue.record import QueueRecord
from lakemq.plugins.native.sdk.serializing import DeserializationError


class SyncQueueRecord(Facade[QueueRecord]):
    """As `QueueRecord`, but settling blocks."""

    __slots__ = ()

    ack = blocking(QueueRecord.ack)
    nack = blocking(QueueRecord.nack)
    release = blocking(QueueRecord.release)
    reject = blocking(QueueRecord.reject)
    extend = blocking(QueueRecord.extend)

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def message(self) -> QueueRecord:
        """Internal: the message itself, for `SyncQueue.ack`."""
        return self._inner

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._inner.topic

    @property
    def partition(self) -> int:
        """Number of the partition, from 0."""
        return self._inner.partition

    @property
    def offset(self) -> int:
        """Offset within the partition."""
        return self._inner.offset

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._inner.timestamp_ms

    @property
    def key(self) -> Any:
        """Key, as it is stored or what the deserializer makes of it; None: it has none."""
        return self._inner.key

    @property
    def value(self) -> Any:
        """Value, as it is stored or what the deserializer makes of it; None: a tombstone."""
        return self._inner.value

    @property
    def headers(self) -> Headers:
        """(name, value) pairs, in order; a value may be None."""
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

    def __iter__(self) -> Iterator[SyncQueueRecord]:
        while batch := self.next_batch():
            yield from batch

    def next_batch(self, count: int = 1, timeout_s: float | None = None) -> list[SyncQueueRecord]:
        """As `Queue.next_batch`: waits for one message, `timeout_s` at most, and takes up to
        `count` that are there."""
        try:
            found = self._call(lambda inner: inner.next_batch(count, timeout_s))
        except DeserializationError as error:
            error.queue_record = SyncQueueRecord(self._runner, error.queue_record)
            raise
        return [SyncQueueRecord(self._runner, message) for message in found]

    def stop(self) -> None:
        """As `Queue.stop`: any thread and any signal handler may call it."""
        self._inner.stop()

    def ack(self, messages: Iterable[SyncQueueRecord]) -> None:
        """As `Queue.ack`: settle many at once."""
        settled = [each.message for each in messages]
        self._call(lambda inner: inner.ack(settled))
