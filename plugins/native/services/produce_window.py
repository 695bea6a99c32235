"""Appends of one stream that wait for their answer, in order, bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from lakemq.broker_core.api.errors import LakeMQError

T = TypeVar("T")


class Window(Generic[T]):
    """(request id, size, outcome) of requests, first come first answered."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pending: deque[tuple[int, int, asyncio.Future[T] | LakeMQError]] = deque()
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def add(self, request_id: int, size: int, outcome: asyncio.Future[T] | LakeMQError) -> None:
        """Add a batch that is being appended."""
        self._bytes += size
        if self._bytes >= self._bytes_max:
            self._room.clear()
        # Also a refusal: answers keep the order of requests.
        self._pending.append((request_id, size, outcome))
        self._changed.set()

    async def room(self) -> None:
        """Wait until another batch may be read from the stream."""
        await self._room.wait()

    def end(self) -> None:
        """No more batches come."""
        self._ended = True
        self._changed.set()

    async def next(self) -> tuple[int, int, asyncio.Future[T] | LakeMQError] | None:
        """The next outcome, in the order of requests; None: that was the last."""
        while not self._pending:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._pending.popleft()

    def answered(self, size: int) -> None:
        """The bytes of an answered batch make room."""
        self._bytes -= size
        if self._bytes < self._bytes_max:
            self._room.set()
