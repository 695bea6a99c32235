"""A member of a consumer group for blocking programs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from lakemq.plugins.native.sdk.blocking.portal import Facade, blocking
from lakemq.plugins.native.sdk.consumer.consumer import Consumer
from lakemq.plugins.native.sdk.consumer.options import Callback, ConsumerOptions, Partitions
from lakemq.plugins.native.sdk.types import ConsumerRecord


class SyncConsumer(Facade[Consumer]):
    """Made by `SyncClient.subscribe`. Iterate it for records; `commit` when they are handled.
    Heartbeats go on whatever the application does meanwhile."""

    commit = blocking(Consumer.commit)

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
        consumer = self._inner
        while True:
            chunk = self._call(lambda inner: inner.chunk_within(idle_s))
            if chunk is None:
                return
            for record in chunk.records:
                if not consumer.may_hand_out(chunk) and not self._call(
                    functools.partial(Consumer.between, chunk=chunk)
                ):
                    break
                consumer.handed_out(record)
                yield record
            consumer.chunk_done()

    @property
    def consumer(self) -> Consumer:
        """The member itself, on the event loop of the client."""
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
