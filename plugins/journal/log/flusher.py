"""Group commit: gathers what partitions have to write and has threads write and fsync it.

Whatever arrives in one turn of the event loop is one flush per partition; partitions flush at the
same time, each one flush at a time; what arrives during a flush is the next one. The loop is woken
once for all flushes that have ended by then.

A hand-over costs more than the flush of a small batch, so it is made with one wake-up each way:
every thread sleeps on a lock of its own, and the one that went to sleep last is woken. (A
`queue.SimpleQueue` wakes a second thread with every item: its getters hand one lock on.)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
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
    """Flush threads that take what is submitted, in order.

    As a context manager it hands over at the end of the block what was submitted inside, instead of
    in the next turn of the loop. Blocks may be nested; the outermost one counts.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._dirty: list[Flushable] = []
        self._blocks = 0
        """Blocks entered and not left: what is submitted is handed over at their end."""
        self._jobs: deque[Flushable] = deque()
        self._asleep: list[threading.Lock] = []
        """Of threads without work, each one's lock, which it waits for."""
        self._ended: deque[Flushable] = deque()
        self._lock = threading.Lock()
        """Guards `_jobs` together with `_asleep`, and `_woken`."""
        self._woken = False
        self._closing = False
        self._busy_ns = [0] * threads
        self._threads = tuple(
            threading.Thread(
                target=self._work, args=(number,), name=f"journal-flush-{number}", daemon=True
            )
            for number in range(threads)
        )
        for thread in self._threads:
            thread.start()

    # -- on the loop

    def submit(self, flushable: Flushable) -> None:
        """Queue a log for its next flush."""
        if not self._dirty and not self._blocks:
            # The first one of a turn arranges the hand-over; the others of that turn join it.
            self._loop.call_soon(self._dispatch)
        self._dirty.append(flushable)

    def __enter__(self) -> None:
        self._blocks += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._blocks -= 1
        if self._dirty and not self._blocks:
            self._dispatch()

    def _dispatch(self) -> None:
        dirty, self._dirty = self._dirty, []
        for flushable in dirty:
            flushable.begin_flush()
            with self._lock:
                self._jobs.append(flushable)
                sleeper = self._asleep.pop() if self._asleep else None
            if sleeper is not None:
                sleeper.release()

    def _finish(self) -> None:
        with self._lock:
            # Before `_ended` is emptied: a flush that ends meanwhile arranges another call.
            self._woken = False
        # What `end_flush` submits is handed over together.
        with self:
            while self._ended:
                self._ended.popleft().end_flush()

    def close(self) -> None:
        """End the threads. Nothing may be under way."""
        with self._lock:
            self._closing = True
            asleep, self._asleep = self._asleep, []
        for sleeper in asleep:
            sleeper.release()
        for thread in self._threads:
            thread.join()

    @property
    def busy_ns(self) -> int:
        """Time that all threads together spent on flushes."""
        return sum(self._busy_ns)

    # -- on the threads

    def _work(self, number: int) -> None:
        sleep = threading.Lock()
        sleep.acquire()
        while taken := self._take(sleep):
            began = time.monotonic_ns()
            for flushable in taken:
                flushable.write_flush()
            for flushable in taken:
                flushable.sync_flush()
                now = time.monotonic_ns()
                # Each thread has its own place in the list: `+=` on a shared one loses updates.
                self._busy_ns[number] += now - began
                began = now
                # Appended first and then looked at `_woken`, which `_finish` clears before it
                # empties the deque: so none is missed. `_wake` looks again under the lock.
                self._ended.append(flushable)
                if not self._woken:
                    self._wake()

    def _take(self, sleep: threading.Lock) -> list[Flushable]:
        """Wait for work and take this thread's share; empty: there will be no more.

        With many partitions waiting, a thread writes several before it syncs the first: the file
        system then commits their changed sizes together, which more than doubles how many files it
        syncs in a second (`docs/performance-journal.md`).
        """
        while True:
            with self._lock:
                if jobs := self._jobs:
                    share = 1 + min(_TOGETHER_MAX, (len(jobs) - 1) // len(self._threads))
                    return [jobs.popleft() for _ in range(share)]
                if self._closing:
                    return []
                # Under the lock that covered the look at `_jobs`: a job that comes from now on
                # wakes this thread. A release before the acquire below is not lost.
                self._asleep.append(sleep)
            sleep.acquire()

    def _wake(self) -> None:
        with self._lock:
            wake, self._woken = not self._woken, True
        if wake:
            with suppress(RuntimeError):  # The loop was closed without stopping the storage.
                self._loop.call_soon_threadsafe(self._finish)
