"""A member of a consumer group for blocking programs."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from lakemq.broker_core.api.types import TopicPartition
from lakemq.plugins.native.sdk.blocking.portal import Facade, blocking
from lakemq.plugins.native.sdk.consumer.chunks import Chunk
from lakemq.plugins.native.sdk.consumer.consumer import Consumer
from lakemq.plugins.native.sdk.consumer.counters import ConsumerCounters
from lakemq.plugins.native.sdk.consumer.options import Callback, ConsumerOptions, Partitions
from lakemq.plugins.native.sdk.types import ConsumerRecord


class SyncConsumer(Facade[Consumer]):
    """Made by `SyncClient.subscribe` and `SyncClient.assign`; a context manager. Iterate it for
    records, or ask for them by `poll` and `get_many`; `commit` when they are handled. Heartbeats go
    on whatever the application does meanwhile."""

    commit = blocking(Consumer.commit)
    get_many = blocking(Consumer.get_many)
    seek = blocking(Consumer.seek)
    seek_to_timestamp = blocking(Consumer.seek_to_timestamp)
    lag = blocking(Consumer.lag)

    def __enter__(self) -> Self:
        self._call(lambda inner: inner.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(lambda inner: inner.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self.until_idle(math.inf)

    def until_idle(self, idle_s: float) -> Iterator[ConsumerRecord]:
        """Records until none has come for `idle_s`; can be called again to go on."""
        reader = self._inner.reader
        while (chunk := self._next_chunk(idle_s)) is not None:
            try:
                for record in chunk.rest:
                    if not reader.may_hand_out(chunk) and not self._between(chunk):
                        break
                    reader.handed_out(record)
                    yield record
            except GeneratorExit:  # the loop was left: the next one goes on behind this record
                raise
            except BaseException:
                reader.put_back()
                raise

    def _next_chunk(self, idle_s: float) -> Chunk | None:
        return self._call(lambda inner: inner.reader.chunk_within(idle_s))

    def _between(self, chunk: Chunk) -> bool:
        goes_on = self._call(lambda inner: inner.reader.between(chunk))
        if not goes_on:
            self._inner.reader.drop(chunk)
        return goes_on

    def poll(self, timeout_s: float | None = None) -> ConsumerRecord | None:
        """As `Consumer.poll`."""
        reader = self._inner.reader
        try:
            # What is there already costs no way to the event loop and back.
            record = reader.take_one()
        except BaseException:
            reader.put_back()
            raise
        if record is not None:
            return record
        return self._call(lambda inner: inner.poll(timeout_s))

    def stop(self) -> None:
        """As `Consumer.stop`: any thread and any signal handler may call it."""
        self._inner.stop()

    def pause(self, *places: TopicPartition) -> None:
        """As `Consumer.pause`."""

        async def pause(inner: Consumer) -> None:
            inner.pause(*places)

        self._call(pause)

    def resume(self, *places: TopicPartition) -> None:
        """As `Consumer.resume`."""

        async def resume(inner: Consumer) -> None:
            inner.resume(*places)

        self._call(resume)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._inner.stopped

    @property
    def paused(self) -> Partitions:
        """Assigned partitions of which nothing is handed out."""
        return self._inner.paused

    @property
    def counters(self) -> ConsumerCounters:
        """As `Consumer.counters`."""
        return self._inner.counters

    def positions(self) -> dict[TopicPartition, int]:
        """As `Consumer.positions`."""
        return self._inner.positions()

    @property
    def consumer(self) -> Consumer:
        """Internal: the member itself, on the event loop of the client."""
        return self._inner

    @property
    def assignment(self) -> Partitions:
        """Partitions that this member reads now."""
        return self._inner.assignment

    def rewind(self) -> None:
        """As `Consumer.rewind`."""

        async def rewind(inner: Consumer) -> None:
            inner.rewind()

        self._call(rewind)


def with_callbacks_in_threads(options: ConsumerOptions) -> ConsumerOptions:
    """Options whose callbacks may make blocking calls, also on their own client."""
    found = options.copy()
    if (callback := options.get("on_assigned")) is not None:
        found["on_assigned"] = _in_thread(callback)
    if (callback := options.get("on_revoked")) is not None:
        found["on_revoked"] = _in_thread(callback)
    if (callback := options.get("on_lost")) is not None:
        found["on_lost"] = _in_thread(callback)
    return found


def _in_thread(callback: Callback) -> Callback:
    async def call(partitions: Partitions) -> None:
        result = await asyncio.to_thread(callback, partitions)
        if inspect.isawaitable(result):
            await result

    return call
