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
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Job = Callable[[], None]
"""Runs on a flush thread and must not raise; keeps its own outcome."""


class Flushable(Protocol):
    """A partition, as the flusher sees it. Both are called on the event loop."""

    def begin_flush(self) -> Job:
        """What to do on a flush thread, taken over from now."""

    def end_flush(self) -> None:
        """That job has run."""


class Flusher(Protocol):
    """What a partition calls."""

    def submit(self, flushable: Flushable) -> None:
        """Flush it soon. Not again before `end_flush`."""


class ThreadFlusher:
    """Flush threads behind one queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._dirty: list[Flushable] = []
        self._jobs: SimpleQueue[tuple[Flushable, Job] | None] = SimpleQueue()
        self._ended: deque[Flushable] = deque()
        self._waking = threading.Lock()
        self._woken = False
        self.busy_ns = 0
        """Time that all threads together spent on jobs."""
        self._threads = [
            threading.Thread(target=self._work, name=f"journal-flush-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, flushable: Flushable) -> None:
        if not self._dirty:
            self._loop.call_soon(self._dispatch)
        self._dirty.append(flushable)

    def _dispatch(self) -> None:
        dirty, self._dirty = self._dirty, []
        for flushable in dirty:
            self._jobs.put((flushable, flushable.begin_flush()))

    def _work(self) -> None:
        while (task := self._jobs.get()) is not None:
            flushable, job = task
            began = time.monotonic_ns()
            job()
            took = time.monotonic_ns() - began
            self._ended.append(flushable)
            with self._waking:
                self.busy_ns += took
                wake, self._woken = not self._woken, True
            if wake:
                self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        with self._waking:
            self._woken = False
        while self._ended:
            self._ended.popleft().end_flush()

    def close(self) -> None:
        """End the threads. Nothing may be under way."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
