"""One partition of a running queue: its state, the log that it reads, and persisting the state."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, NotLeader, OffsetOutOfRange
from lakemq.broker_core.api.queues.types import Settlement
from lakemq.broker_core.queues.partition_state import Delivered, QueuePartitionState
from lakemq.broker_core.queues.snapshot import Snapshot
from lakemq.broker_core.queues.source import Readable, RecordSource, SourceRecord, batch_of

_log = logging.getLogger(__name__)
_RETRY_FIRST_MS: Final = 250
_RETRY_MAX_MS: Final = 2_000
"""Consumers wait for it, so not long."""
_rng: Final = random.Random()


def now_ms() -> int:
    """The monotonic clock of locks and backoffs (ms)."""
    return time.monotonic_ns() // 1_000_000


class QueuePartitionRuntime:
    """Applies changes at once, in memory; `persisted` is done when they are on disk."""

    def __init__(
        self,
        number: int,
        state: QueuePartitionState,
        log: Readable,
        keep: Callable[[Snapshot], Awaitable[None]],
        *,
        topic: str,
        window_max: int,
    ) -> None:
        self.number = number
        self.state = state
        self.source = RecordSource(log, topic, number)
        self._keep = keep
        self._window_max = window_max
        self._dirty = False
        self._abandoned = False
        self._waiting: list[asyncio.Future[None]] = []
        self._written_next: list[asyncio.Future[None]] = []
        """Of the snapshot that is being written."""
        self._writer: asyncio.Task[None] | None = None

    @property
    def log(self) -> Readable:
        """The log that the queue reads."""
        return self.source.log

    # -- on disk

    def changed(self) -> None:
        """Persist a change soon; no caller waits for it."""
        if self._abandoned:
            return
        self._dirty = True
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    def persisted(self) -> asyncio.Future[None]:
        """Done when everything that has been changed so far is on disk; fails with NotLeader once
        it is abandoned."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._abandoned:
            self._fail_waiting()
        self.changed()
        return future

    async def _write(self) -> None:
        """One snapshot at a time: what changes meanwhile is in the next one."""
        try:
            while self._dirty:
                # Both are reset before the snapshot is taken, which happens without an await in
                # between: a change during the write is in the next round, and so is the caller that
                # waits for it.
                self._dirty = False
                self._written_next, self._waiting = self._waiting, []
                await self._write_once(self.state.snapshot())
                written, self._written_next = self._written_next, []
                for future in written:
                    if not future.done():
                        future.set_result(None)
        finally:
            self._writer = None

    async def _write_once(self, snapshot: Snapshot) -> None:
        """Retry until it is written: answers wait that long, because consumers already act on what
        is in memory."""
        logged = False
        backoff = Backoff(_RETRY_FIRST_MS, _RETRY_MAX_MS, _rng.random)
        while True:
            try:
                await self._keep(snapshot)
                return
            except LakeMQError as error:
                if not logged:
                    _log.warning("could not persist the state of a queue, retrying: %s", error)
                logged = True
                await asyncio.sleep(backoff.next_s())
                # A newer one covers all that the old one did.
                snapshot = self.state.snapshot()

    async def close(self, wait_s: float) -> None:
        """Finish writing, or give up after `wait_s`."""
        writer = self._writer
        if writer is not None:
            await asyncio.wait([writer], timeout=wait_s)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def abandon(self) -> None:
        """Another node goes on from what is on disk: nothing is written any more, whatever is still
        called."""
        self._abandoned = True
        if self._writer is not None:
            self._writer.cancel()
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        waiting = [*self._waiting, *self._written_next]
        self._waiting, self._written_next = [], []
        for future in waiting:
            if not future.done():
                future.set_exception(NotLeader("another node coordinates the queue by now"))
                future.exception()  # its consumer may have left

    # -- records

    async def restore(self) -> None:
        """Load everything again that was ever delivered and is not finished."""
        while not self.state.is_restored and await self._load():
            pass

    async def fill(self, count: int) -> None:
        """Load more of the log until about `count` records are ready, if the log has that many."""
        state = self.state
        if state.advance(self.log.log_start_offset):
            self.changed()
        await self.restore()
        while state.ready < count and state.unfinished < self._window_max and await self._load():
            pass

    async def _load(self) -> bool:
        """Whether the log had more."""
        state = self.state
        if state.end >= self.log.high_watermark:
            return False
        try:
            found = await self.source.after(max(state.end, self.log.log_start_offset))
        except OffsetOutOfRange:
            # Of a partition that another node leads it is known only now.
            if not state.advance(self.log.log_start_offset):
                raise
            self.changed()
            return True
        for opened in found:
            state.load(opened.offsets, opened.keys, opened.end)
        return bool(found)

    async def take(
        self, consumer: int, count: int, bytes_max: int
    ) -> tuple[bytes, list[Delivered]] | None:
        """Acquire records for a consumer: the batch that holds them, and their attempts; None:
        there are none."""
        state = self.state
        # Acquired before they are read: reading gives way to other tasks.
        delivered = state.acquire(consumer, count, now_ms())
        if not delivered:
            return None
        delivered.sort()
        try:
            rows = await self.source.rows([each.offset for each in delivered])
        except LakeMQError:
            for each in delivered:
                state.settle(consumer, each.offset, Settlement.RELEASE, now_ms(), 0)
            raise
        chosen = _fitting(rows, bytes_max)
        kept = {row.offset for row in chosen}
        there = {row.offset for row in rows}
        for each in delivered:
            if each.offset not in there:  # deleted by retention meanwhile
                state.settle(consumer, each.offset, Settlement.ACCEPT, now_ms())
                self.changed()
            elif each.offset not in kept:
                state.settle(consumer, each.offset, Settlement.RELEASE, now_ms(), 0)
        if not chosen:
            return None
        return batch_of(chosen), [each for each in delivered if each.offset in kept]


def _fitting(rows: list[SourceRecord], bytes_max: int) -> list[SourceRecord]:
    """As many as fit, at least one."""
    size = 0
    for at, row in enumerate(rows):
        size += row.size
        if at and size > bytes_max:
            return rows[:at]
    return rows
