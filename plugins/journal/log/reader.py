"""The readable side of a partition's log: high watermark, tail, long polls, taps. On the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from lakemq.broker_core.api.errors import OffsetOutOfRange, Unavailable
from lakemq.broker_core.api.ports import Tap
from lakemq.broker_core.api.records.tiered import SEGMENTS_MAX, TieredSegments
from lakemq.broker_core.api.types import CommittedBatch, FetchResult, Offset
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.log.reading import find_timestamp, read_slice
from lakemq.plugins.journal.log.writer import Stamped
from lakemq.plugins.journal.segment.tail import Tail
from lakemq.plugins.journal.tiering.tiered import tiered_between

_log = logging.getLogger(__name__)
_FETCH_MAX_BYTES: Final = 64 * 1024 * 1024
"""What one fetch takes memory for at most, whatever is asked, unless a single batch is larger."""


class LogReader:
    """Answers fetches; `publish` gives it what became durable."""

    def __init__(
        self, context: LogContext, folder: LogFolder, topic: str, partition: int, tail: Tail
    ) -> None:
        self.topic, self.partition = topic, partition
        self.tail = tail
        self.high_watermark = folder.active_index.next_offset
        self.closed = False
        self._context = context
        self._folder = folder
        self._taps: list[Tap] = []
        self._poll_waiters: set[asyncio.Future[None]] = set()

    def publish(self, fresh: Sequence[Stamped]) -> None:
        """Let readers see batches: the tail, the high watermark, taps, long polls."""
        counters, tail = self._context.counters, self.tail
        for header, data, _ in fresh:
            tail.add(header, data)
            counters.appended_records += header.record_count
            counters.appended_bytes += len(data)
        tail.trim()
        self.high_watermark = fresh[-1].header.last_offset + 1
        # Behind the high watermark: a tap may read what it is called with.
        if self._taps:
            self._call_taps(fresh)
        self._wake_polls()

    @property
    def tapped(self) -> bool:
        """Whether any tap sees batches as they become readable."""
        return bool(self._taps)

    def close(self) -> None:
        """Answer no request any more."""
        self.closed = True
        self._wake_polls()

    def _call_taps(self, fresh: Sequence[Stamped]) -> None:
        batches = [
            CommittedBatch(self.topic, self.partition, Offset(header.base_offset), data, columns)
            for header, data, columns in fresh
        ]
        # A copy: a tap may remove itself, or another one.
        for tap in tuple(self._taps):
            try:
                tap(batches)
            except Exception:  # A tap must not raise; one that does must not stop the log.
                _log.exception("a tap of %s partition %d failed", self.topic, self.partition)

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        """See the port. Reads at the tail are answered from memory, at once."""
        if offset == self.high_watermark and wait_ms > 0 and not self.closed:
            await self._poll(wait_ms)
        # Nothing to read: neither the tail nor the disk has to be asked.
        if offset == self.high_watermark and not self.closed:
            return self._fetched(b"", offset)
        self._check_readable(offset)
        bytes_max = min(bytes_max, _FETCH_MAX_BYTES)
        cut = self.tail.read(offset, bytes_max)
        if cut is None:
            self._context.counters.disk_reads += 1
            cut = await self._context.loop.run_in_executor(
                self._readers_of(offset), read_slice, self._folder, offset, self.high_watermark,
                bytes_max,
            )  # fmt: skip
        else:
            self._context.counters.tail_reads += 1
        self._context.counters.read_bytes += len(cut.data)
        return self._fetched(cut.data, cut.next_offset)

    def _readers_of(self, offset: int) -> Executor:
        """An object store may be slow: who reads from it must not hold up who reads from disk."""
        context = self._context
        return context.remote_readers if self._folder.is_remote(offset) else context.readers

    def _check_readable(self, offset: int) -> None:
        if self.closed:
            raise Unavailable(f"partition {self.partition} of {self.topic} is closed")
        start = self._folder.manifest.log_start_offset
        if not start <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} is not within {start}..{self.high_watermark} "
                f"of {self.topic} partition {self.partition}"
            )

    def _fetched(self, data: bytes, next_offset: int) -> FetchResult:
        return FetchResult(
            data, Offset(next_offset), Offset(self.high_watermark),
            Offset(self._folder.manifest.log_start_offset),
        )  # fmt: skip

    async def _poll(self, wait_ms: int) -> None:
        """Until something became readable, the log is closed or the time is over."""
        waiter: asyncio.Future[None] = self._context.loop.create_future()
        self._poll_waiters.add(waiter)
        timer = self._context.loop.call_later(wait_ms / 1000, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._poll_waiters.discard(waiter)

    def _wake_polls(self) -> None:
        if self._poll_waiters:
            waiters, self._poll_waiters = self._poll_waiters, set()
            for waiter in waiters:
                _wake(waiter)

    async def offset_for_timestamp(self, timestamp_ms: int) -> Offset:
        """See the port."""
        if self.closed:
            raise Unavailable(f"partition {self.partition} of {self.topic} is closed")
        start = self._folder.manifest.log_start_offset
        found = await self._context.loop.run_in_executor(
            self._readers_of(start), find_timestamp, self._folder, timestamp_ms, self.high_watermark
        )
        return Offset(found)

    async def tiered_segments(
        self, start: int, end: int, *, count_max: int = SEGMENTS_MAX
    ) -> TieredSegments:
        """See the port."""
        if self.closed:
            raise Unavailable(f"partition {self.partition} of {self.topic} is closed")
        return await self._context.loop.run_in_executor(
            self._context.readers, tiered_between, self._folder, start,
            min(end, self.high_watermark), self.high_watermark, count_max,
        )  # fmt: skip

    def tap(self, tap: Tap) -> Callable[[], None]:
        """See the port."""
        self._taps.append(tap)

        def remove() -> None:
            if tap in self._taps:
                self._taps.remove(tap)

        return remove


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
