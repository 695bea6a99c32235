"""Group commit: gathers what partitions have to write and has threads write and fsync it.

Whatever arrives in one turn of the event loop is one flush per partition; partitions flush at the
same time, each one flush at a time; what arrives during a flush is the next one. The loop is woken
once for all flushes that have ended by then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Protocol

_TOGETHER_MAX: Final = 32
"""Most flushes that one thread takes at a time."""


class Flushable(Protocol):
    """A partition, as the flusher sees it. What runs on a flush thread must not raise."""

    def begin_flush(self) -> None:
        """On the event loop: take over what is there to be written."""

    def write_flush(self) -> None:
        """On a flush thread: write it."""

    def sync_flush(self) -> None:
        """On the same thread: make it durable."""

    def end_flush(self) -> None:
        """On the event loop: publish what came of it."""


class Flusher(Protocol):
    """What a partition calls."""

    def submit(self, flushable: Flushable) -> None:
        """Flush it soon. Not again before `end_flush`."""


class ThreadFlusher:
    """Flush threads behind one queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._dirty: list[Flushable] = []
        self._jobs: SimpleQueue[Flushable | None] = SimpleQueue()
        self._ended: deque[Flushable] = deque()
        self._lock = threading.Lock()
        self._woken = False
        self._busy_ns = [0] * threads
        self._threads = tuple(
            threading.Thread(
                target=self._work, args=(number,), name=f"journal-flush-{number}", daemon=True
            )
            for number in range(threads)
        )
        for thread in self._threads:
            thread.start()

    def submit(self, flushable: Flushable) -> None:
        if not self._dirty:
            self._loop.call_soon(self._dispatch)
        self._dirty.append(flushable)

    def _dispatch(self) -> None:
        dirty, self._dirty = self._dirty, []
        for flushable in dirty:
            flushable.begin_flush()
            self._jobs.put(flushable)

    @property
    def busy_ns(self) -> int:
        """Time that all threads together spent on flushes."""
        return sum(self._busy_ns)

    def _work(self, number: int) -> None:
        while (first := self._jobs.get()) is not None:
            taken = [first, *self._share_of_backlog()]
            began = time.monotonic_ns()
            for flushable in taken:
                flushable.write_flush()
            for flushable in taken:
                flushable.sync_flush()
                now = time.monotonic_ns()
                self._busy_ns[number] += now - began
                began = now
                self._ended.append(flushable)
                if not self._woken:
                    self._wake()

    def _share_of_backlog(self) -> list[Flushable]:
        """With many partitions waiting, a thread writes several before it syncs the first: the
        file system then commits their changed sizes together, which more than doubles how many
        files it syncs in a second (`docs/performance-journal.md`)."""
        taken: list[Flushable] = []
        share = min(_TOGETHER_MAX, self._jobs.qsize() // len(self._threads))
        for _ in range(share):
            try:
                flushable = self._jobs.get_nowait()
            except Empty:
                break
            if flushable is None:
                self._jobs.put(None)
                break
            taken.append(flushable)
        return taken

    def _wake(self) -> None:
        with self._lock:
            wake, self._woken = not self._woken, True
        if wake:
            with suppress(RuntimeError):  # The loop was closed without stopping the storage.
                self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        with self._lock:
            self._woken = False
        while self._ended:
            self._ended.popleft().end_flush()

    def close(self) -> None:
        """End the threads. Nothing may be under way."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
