"""The readable side of a partition's log: high watermark, tail, long polls, taps. On the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from lakemq.broker_core.api.errors import CorruptLog, OffsetOutOfRange, Unavailable
from lakemq.broker_core.api.ports import Tap
from lakemq.broker_core.api.records.tiered import SEGMENTS_MAX, TieredSegments
from lakemq.broker_core.api.types import FetchResult, Offset
from lakemq.plugins.journal.log.context import LogContext
from lakemq.plugins.journal.log.folder import LogFolder
from lakemq.plugins.journal.log.reading import find_timestamp, read_slice
from lakemq.plugins.journal.log.taps import Taps
from lakemq.plugins.journal.log.writer import Stamped
from lakemq.plugins.journal.segment.tail import Tail
from lakemq.plugins.journal.segment.walk import Slice
from lakemq.plugins.journal.tiering.tiered import tiered_between

_FETCH_MAX_BYTES: Final = 64 * 1024 * 1024
"""What one fetch takes memory for at most, whatever is asked, unless a single batch is larger."""
_AGAIN_MAX_BYTES: Final = 1024 * 1024
"""What is read at a time for taps."""


class LogReader:
    """Answers fetches. `publish`, or `hold` and then `commit_to`, give it what became durable."""

    def __init__(
        self,
        context: LogContext,
        folder: LogFolder,
        topic: str,
        partition: int,
        tail: Tail,
        high_watermark: int,
        log_end: Callable[[], int],
    ) -> None:
        """`log_end`: asked for offsets behind the high watermark, of which a client may know."""
        self.topic, self.partition = topic, partition
        self.tail = tail
        self.high_watermark = high_watermark
        self.durable_end = folder.active_index.next_offset
        self.closed = False
        self.repair: Callable[[], Awaitable[bool]] | None = None
        """What readers that meet damage wait for; True: they may read again."""
        self._context = context
        self._folder = folder
        self._log_end = log_end
        self._taps = Taps(
            context.loop, topic, partition, context.unflushed_max_bytes, self._read_again,
            lambda: self.durable_end,
        )  # fmt: skip
        self._poll_waiters: set[asyncio.Future[None]] = set()

    def publish(self, fresh: Sequence[Stamped]) -> None:
        """Let readers see batches that became durable, of a log that is alone: the tail, the high
        watermark, taps, long polls."""
        self._keep(fresh, fresh)
        self.high_watermark = self.durable_end
        # Behind the high watermark: a tap may read what it is called with.
        if self._taps:
            self._taps.publish(fresh, self.high_watermark)
        self._wake_polls()

    def hold(self, fresh: Sequence[Stamped]) -> None:
        """Batches became durable that are not readable yet; the tail may have them already."""
        kept_end = self.tail.end
        self._keep(fresh, [each for each in fresh if each.header.base_offset >= kept_end])
        if self._taps:
            self._taps.hold(fresh)

    def _keep(self, fresh: Sequence[Stamped], new: Sequence[Stamped]) -> None:
        """`new`: those of `fresh` that the tail does not have yet."""
        counters, tail = self._context.counters, self.tail
        for header, data, _ in fresh:
            counters.appended_records += header.record_count
            counters.appended_bytes += len(data)
        for header, data, _ in new:
            tail.add(header, data)
        tail.trim()
        self.durable_end = fresh[-1].header.last_offset + 1

    def commit_to(self, offset: int) -> bool:
        """Move the high watermark forward, as far as the log is durable; whether it moved."""
        offset = min(offset, self.durable_end)
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        if self._taps:
            self._taps.commit(offset)
        self._wake_polls()
        return True

    def cut(self, log_end: int) -> None:
        """The log ends at `log_end` now; nothing readable was cut."""
        self.durable_end = log_end
        # It may have been within a gap that compaction left.
        self.high_watermark = min(self.high_watermark, log_end)
        self.tail.clear()
        self._taps.cut(log_end)
        self._wake_polls()

    def restart(self, offset: int) -> None:
        """The log starts and ends at `offset` now."""
        self.durable_end = self.high_watermark = offset
        self.tail.clear()
        self._taps.restart(offset)
        self._wake_polls()

    @property
    def tapped(self) -> bool:
        """Whether any tap sees batches as they become readable."""
        return bool(self._taps)

    def close(self) -> None:
        """Answer no request any more."""
        self.closed = True
        self._taps.close()
        self._wake_polls()

    async def fetch(self, offset: Offset, *, bytes_max: int, wait_ms: int = 0) -> FetchResult:
        """See the port. Reads at the tail are answered from memory, at once."""
        if offset >= self.high_watermark and wait_ms > 0 and self._is_ahead(offset):
            await self._poll(offset, wait_ms)
        # Nothing to read: neither the tail nor the disk has to be asked.
        if offset >= self.high_watermark and self._is_ahead(offset):
            return self._fetched(b"", offset)
        self._check_readable(offset)
        bytes_max = min(bytes_max, _FETCH_MAX_BYTES)
        cut = self.tail.read(offset, bytes_max, self.high_watermark)
        if cut is None:
            self._context.counters.disk_reads += 1
            cut = await self._read_files(offset, self.high_watermark, bytes_max)
        else:
            self._context.counters.tail_reads += 1
        self._context.counters.read_bytes += len(cut.data)
        return self._fetched(cut.data, cut.next_offset)

    def _is_ahead(self, offset: int) -> bool:
        """Whether an offset at or behind the high watermark is one that readers may wait at: a new
        leader may know of an older high watermark than its clients do."""
        return not self.closed and offset <= self._log_end()

    async def _read_again(self, offset: int, offset_end: int) -> Slice:
        """For taps. Raises OffsetOutOfRange, CorruptLog, Unavailable."""
        cut = self.tail.read(offset, _AGAIN_MAX_BYTES, offset_end)
        if cut is not None:
            return cut
        return await self._read_files(offset, offset_end, _AGAIN_MAX_BYTES)

    async def _read_files(self, offset: int, offset_end: int, bytes_max: int) -> Slice:
        readers = self._readers_of(offset)
        read = partial(read_slice, self._folder, offset, offset_end, bytes_max)
        try:
            return await self._context.loop.run_in_executor(readers, read)
        except CorruptLog:
            if self.repair is None or not await self.repair():
                raise
        return await self._context.loop.run_in_executor(readers, read)

    def read_replica(self, offset: int, bytes_max: int, sendable_end: int) -> asyncio.Future[bytes]:
        """See the port. `sendable_end`: behind what is durable the tail alone is asked."""
        loop = self._context.loop
        done: asyncio.Future[bytes] = loop.create_future()
        start = self._folder.manifest.log_start_offset
        if self.closed:
            done.set_exception(Unavailable(f"partition {self.partition} of {self.topic} is closed"))
            return done
        if not start <= offset <= self._log_end():
            done.set_exception(
                OffsetOutOfRange(
                    f"offset {offset} is not within {start}..{self._log_end()} "
                    f"of {self.topic} partition {self.partition}"
                )
            )
            return done
        if offset >= sendable_end:
            done.set_result(b"")
            return done
        # Within one segment: where the next one begins, the follower's begins too.
        end = min(sendable_end, self._folder.segment_end(offset))
        bytes_max = min(bytes_max, _FETCH_MAX_BYTES)
        cut = self.tail.read(offset, bytes_max, end)
        if cut is not None or offset >= self.durable_end:
            done.set_result(cut.data if cut is not None else b"")
            return done
        return loop.run_in_executor(
            self._readers_of(offset), _read_data, self._folder, offset, self.durable_end, bytes_max
        )

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

    async def _poll(self, offset: int, wait_ms: int) -> None:
        """Until `offset` became readable, the log is cut or closed or the time is over."""
        loop = self._context.loop
        deadline_s = loop.time() + wait_ms / 1000
        while offset >= self.high_watermark and self._is_ahead(offset):
            waiter: asyncio.Future[None] = loop.create_future()
            self._poll_waiters.add(waiter)
            timer = loop.call_at(deadline_s, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._poll_waiters.discard(waiter)
            if loop.time() >= deadline_s:
                break

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
        return self._taps.add(tap, self.high_watermark)


def _read_data(folder: LogFolder, offset: int, offset_end: int, bytes_max: int) -> bytes:
    return read_slice(folder, offset, offset_end, bytes_max).data


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
