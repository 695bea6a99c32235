"""A consumer of a queue without asyncio: its stream runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lakemq.broker_core.api.types import Headers
from lakemq.plugins.native.sdk.blocking.loop_runner import LoopRunner
from lakemq.plugins.native.sdk.client.client import Client, beside
from lakemq.plugins.native.sdk.queue.queue import Queue, QueueOptions
from lakemq.plugins.native.sdk.queue.record import QueueMessage

if TYPE_CHECKING:
    from lakemq.plugins.native.sdk.blocking.client import SyncClient

_T = TypeVar("_T")


class SyncQueueMessage:
    """As `QueueMessage`, but settling blocks."""

    __slots__ = ("_queue", "message")

    def __init__(self, queue: SyncQueue, message: QueueMessage) -> None:
        self._queue = queue
        self.message = message
        """The message itself, for `SyncQueue.ack`."""

    def __repr__(self) -> str:
        return repr(self.message)

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def partition(self) -> int:
        return self.message.partition

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def timestamp_ms(self) -> int:
        return self.message.timestamp_ms

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def value(self) -> bytes | None:
        return self.message.value

    @property
    def headers(self) -> Headers:
        return self.message.headers

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self.message.attempt

    def ack(self) -> None:
        """As `QueueMessage.ack`."""
        self._queue.run(self.message.ack())

    def nack(self, delay_ms: int | None = None) -> None:
        """As `QueueMessage.nack`."""
        self._queue.run(self.message.nack(delay_ms))

    def release(self) -> None:
        """As `QueueMessage.release`."""
        self._queue.run(self.message.release())

    def reject(self) -> None:
        """As `QueueMessage.reject`."""
        self._queue.run(self.message.reject())

    def extend(self) -> None:
        """As `QueueMessage.extend`."""
        self._queue.run(self.message.extend())


class SyncQueue:
    """Made by `SyncClient.queue`; use it as a context manager. Iterate it for messages."""

    def __init__(self, client: SyncClient, topic: str, group: str, options: QueueOptions) -> None:
        self._runner = LoopRunner()
        try:
            self._client, self._queue = self.run(self._make(client, topic, group, options))
        except BaseException:
            self._runner.close()
            raise

    @staticmethod
    async def _make(
        client: SyncClient, topic: str, group: str, options: QueueOptions
    ) -> tuple[Client, Queue]:
        own = await beside(client)
        return own, own.queue(topic, group=group, **options)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the queue's own loop, and wait for it."""
        return self._runner.run(work)

    def __enter__(self) -> Self:
        self.run(self._queue.open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(self._queue.close())
            self.run(self._client.close())
        finally:
            self._runner.close()

    def __iter__(self) -> Iterator[SyncQueueMessage]:
        while True:
            yield from self.next_batch()

    def next_batch(self, count: int = 1) -> list[SyncQueueMessage]:
        """One message or more, up to `count`: what is there."""
        found = self.run(self._queue.next_batch(count))
        return [SyncQueueMessage(self, message) for message in found]

    def ack(self, messages: Iterable[SyncQueueMessage]) -> None:
        """Settle many at once, as `Queue.ack`."""
        self.run(self._queue.ack([each.message for each in messages]))
