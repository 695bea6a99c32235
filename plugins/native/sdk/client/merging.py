"""Batches of several partitions as they arrive, a bounded number ahead of who reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Final, Self

from lakemq.broker_core.api.errors import InvalidRequest
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.plugins.native.sdk.net.errors import CLOSED

_AHEAD: Final = 4
"""Batches of a partition."""


class MergedBatches:
    """One task a partition. They end with their batches, or by `close`, whether anybody still
    reads or not: a reader that left its loop is closed by Python only when it is collected."""

    def __init__(self, sources: Iterable[tuple[int, AsyncGenerator[RecordBatch, None]]]) -> None:
        # Bounded by `_room`, so that a task that ends need not wait to say so.
        self._arrived: asyncio.Queue[tuple[int, RecordBatch] | asyncio.Task[None]] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._read(*each)) for each in sources]
        self._reading = len(self._tasks)
        self._room = asyncio.Semaphore(_AHEAD * self._reading)
        for task in self._tasks:
            task.add_done_callback(self._arrived.put_nowait)

    async def _read(self, number: int, batches: AsyncGenerator[RecordBatch, None]) -> None:
        async with aclosing(batches):
            async for batch in batches:
                await self._room.acquire()
                self._arrived.put_nowait((number, batch))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    # No generator: of two, one in the other, asyncio closes both at once at its end, and fails.
    async def __anext__(self) -> tuple[int, RecordBatch]:
        """(partition, batch), until all have ended. Raises what one failed with; InvalidRequest
        after `close`."""
        while self._reading:
            item = await self._arrived.get()
            if not isinstance(item, asyncio.Task):
                self._room.release()
                return item
            self._reading -= 1
            if item.cancelled():
                raise InvalidRequest(CLOSED)
            item.result()
        raise StopAsyncIteration

    async def close(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
