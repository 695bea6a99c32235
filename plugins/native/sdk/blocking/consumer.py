"""A member of a consumer group without asyncio: its heartbeats run in a thread of its own."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.blocking.loop_runner import LoopRunner
from lakemq.plugins.native.sdk.client.client import Client, beside
from lakemq.plugins.native.sdk.consumer.consumer import Consumer, ConsumerOptions, Partitions
from lakemq.plugins.native.sdk.types import ConsumerRecord

if TYPE_CHECKING:
    from lakemq.plugins.native.sdk.blocking.client import SyncClient

_T = TypeVar("_T")


class SyncConsumer:
    """Made by `SyncClient.subscribe`. Iterate it for records; `commit` when they are handled."""

    def __init__(
        self, client: SyncClient, topics: Sequence[str], group: str, options: ConsumerOptions
    ) -> None:
        self._runner = LoopRunner()
        try:
            self._client, self._consumer = self._run(self._make(client, topics, group, options))
        except BaseException:
            self._runner.close()
            raise

    @staticmethod
    async def _make(
        client: SyncClient, topics: Sequence[str], group: str, options: ConsumerOptions
    ) -> tuple[Client, Consumer]:
        own = await beside(client)
        return own, own.subscribe(topics, group=group, **options)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._runner.run(work)

    def __enter__(self) -> Self:
        self._run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run(self._consumer.__aexit__(kind, error, trace))
            self._run(self._client.close())
        finally:
            self._runner.close()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        consumer = self._consumer
        while True:
            chunk = self._run(consumer.next_chunk())
            for record in chunk.records:
                if not consumer.may_hand_out(chunk) and not self._run(consumer.between(chunk)):
                    break
                consumer.handed_out(record)
                yield record
            consumer.chunk_done()

    @property
    def consumer(self) -> Consumer:
        """The member itself, whose heartbeats run in a thread."""
        return self._consumer

    @property
    def assignment(self) -> Partitions:
        """Partitions that this member reads now."""
        return self._consumer.assignment

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """As `Consumer.commit`."""
        self._run(self._consumer.commit(offsets))

    def rewind(self) -> None:
        """As `Consumer.rewind`."""

        async def rewind() -> None:
            self._consumer.rewind()

        self._run(rewind())
