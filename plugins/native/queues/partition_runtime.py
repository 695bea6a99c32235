"""One partition of a queue at work: its state, the log it reads, and keeping the state on disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.ports import PartitionLog
from lakemq.plugins.native.queues.partition_state import Delivered, QueuePartition, Settlement
from lakemq.plugins.native.queues.snapshot import Snapshot
from lakemq.plugins.native.queues.source import Row, Source, batch_of

_log = logging.getLogger("lakemq.native")
_RETRY_S: Final = 0.5


def now_ms() -> int:
    """The clock of locks and pauses."""
    return time.monotonic_ns() // 1_000_000


class Part:
    """Changes are made at once, in memory; `kept` tells when they are on disk."""

    def __init__(
        self,
        number: int,
        state: QueuePartition,
        log: PartitionLog,
        keep: Callable[[Snapshot], Awaitable[None]],
        *,
        topic: str,
        window_max: int,
    ) -> None:
        self.number = number
        self.state = state
        self.source = Source(log, topic, number)
        self._keep = keep
        self._window_max = window_max
        self._dirty = False
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def log(self) -> PartitionLog:
        return self.source.log

    # -- on disk

    def changed(self) -> None:
        """What was changed goes to disk soon; nobody waits for it."""
        self._dirty = True
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    def kept(self) -> asyncio.Future[None]:
        """Done when everything that has been changed so far is on disk."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.changed()
        return future

    async def _write(self) -> None:
        """One snapshot at a time: whatever changes meanwhile is in the next one."""
        try:
            while self._dirty:
                self._dirty = False
                waiting, self._waiting = self._waiting, []
                await self._write_once(self.state.snapshot())
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
        finally:
            self._writer = None

    async def _write_once(self, snapshot: Snapshot) -> None:
        """Until it is written: answers wait that long, for what is in memory is the truth."""
        told = False
        while True:
            try:
                await self._keep(snapshot)
                return
            except LakeMQError as error:
                if not told:
                    _log.warning("the state of a queue cannot be written: %s", error)
                told = True
                await asyncio.sleep(_RETRY_S)
                snapshot = self.state.snapshot()

    async def close(self, wait_s: float) -> None:
        """Write what is to be written, or give it up when that takes too long."""
        writer = self._writer
        if writer is not None:
            await asyncio.wait([writer], timeout=wait_s)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    # -- records

    async def restore(self) -> None:
        """Look again at everything that was ever delivered and is not finished."""
        while not self.state.is_restored and await self._load():
            pass

    async def fill(self, count: int) -> None:
        """Look at more of the log until some `count` records may be delivered, if there are."""
        state = self.state
        if state.advance(self.log.log_start_offset):
            self.changed()
        await self.restore()
        while state.ready < count and state.unfinished < self._window_max and await self._load():
            pass

    async def _load(self) -> bool:
        """Whether there was more."""
        state = self.state
        if state.end >= self.log.high_watermark:
            return False
        found = await self.source.after(max(state.end, self.log.log_start_offset))
        for opened in found:
            state.load(opened.offsets, opened.keys, opened.end)
        return bool(found)

    async def take(
        self, session: int, count: int, bytes_max: int
    ) -> tuple[bytes, list[Delivered]] | None:
        """Records for a session, and the batch that holds them; None: there are none."""
        state = self.state
        delivered = state.acquire(session, count, now_ms())
        if not delivered:
            return None
        delivered.sort()
        rows = await self.source.rows([each.offset for each in delivered])
        chosen = _fitting(rows, bytes_max)
        kept = {row.offset for row in chosen}
        there = {row.offset for row in rows}
        for each in delivered:
            if each.offset not in there:  # retention was faster
                state.settle(session, each.offset, Settlement.ACCEPT, now_ms())
                self.changed()
            elif each.offset not in kept:
                state.settle(session, each.offset, Settlement.RELEASE, now_ms(), 0)
        if not chosen:
            return None
        return batch_of(chosen), [each for each in delivered if each.offset in kept]


def _fitting(rows: list[Row], bytes_max: int) -> list[Row]:
    """As many as fit, at least one."""
    size = 0
    for at, row in enumerate(rows):
        size += row.size
        if at and size > bytes_max:
            return rows[:at]
    return rows
