"""Who is called with every batch that becomes readable. On the event loop.

Batches that are durable and not yet below the high watermark are held for taps, up to a limit;
beyond it they are let go and read again when the high watermark passes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import LakeMQError, Unavailable
from lakemq.broker_core.api.ports import Tap
from lakemq.broker_core.api.records.batch import split
from lakemq.broker_core.api.types import CommittedBatch, Offset
from lakemq.plugins.journal.log.writer import Stamped
from lakemq.plugins.journal.segment.walk import Slice

_log = logging.getLogger(__name__)
_AGAIN_S: Final = 1.0
"""Pause before a read that failed for a reason that passes."""

ReadAgain = Callable[[int, int], Awaitable[Slice]]
"""(offset, end offset) -> readable batches from the first on, none that reaches the second."""


class _Entry(NamedTuple):
    tap: Tap
    start: int
    """The high watermark when it was added: what lies below was readable before."""


class Taps:
    """The taps of one partition."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topic: str,
        partition: int,
        held_max_bytes: int,
        read: ReadAgain,
        durable_end: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._topic, self._partition = topic, partition
        self._held_max_bytes = held_max_bytes
        self._read = read
        self._durable_end = durable_end
        self._entries: list[_Entry] = []
        self._delivered = 0
        """Taps have got all below it."""
        self._committed = 0
        """They are to get all below it."""
        self._held: deque[Stamped] = deque()
        self._held_bytes = 0
        self._whole = True
        """Whether `_held` has all durable batches from `_delivered` on."""
        self._reading: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, tap: Tap, high_watermark: int) -> Callable[[], None]:
        """Call `tap` from now on; returns its removal."""
        if not self._entries:
            self._delivered = self._committed = high_watermark
            self._drop_held()
            self._whole = high_watermark == self._durable_end()
        entry = _Entry(tap, high_watermark)
        self._entries.append(entry)

        def remove() -> None:
            if entry in self._entries:
                self._entries.remove(entry)

        return remove

    def publish(self, fresh: Sequence[Stamped], high_watermark: int) -> None:
        """Batches became durable and readable in one."""
        if self._held or not self._whole:
            self.hold(fresh)
            self.commit(high_watermark)
            return
        self._delivered = self._committed = high_watermark
        self._call(fresh)

    def hold(self, fresh: Sequence[Stamped]) -> None:
        """Batches became durable; `commit` tells when they are readable."""
        if not self._entries or not self._whole:
            return
        self._held.extend(fresh)
        self._held_bytes += sum(len(batch.data) for batch in fresh)
        if self._held_bytes > self._held_max_bytes:
            self._drop_held()
            self._whole = False

    def commit(self, high_watermark: int) -> None:
        """The high watermark moved forward: call taps with what it passed."""
        if not self._entries:
            return
        self._committed = high_watermark
        if self._whole:
            passed: list[Stamped] = []
            while self._held and self._held[0].header.last_offset < high_watermark:
                passed.append(self._held.popleft())
                self._held_bytes -= len(passed[-1].data)
            self._delivered = high_watermark
            if passed:
                self._call(passed)
        elif self._reading is None:
            self._reading = self._loop.create_task(self._catch_up())

    def cut(self, log_end: int) -> None:
        """The log ends at `log_end` now; nothing readable was cut."""
        while self._held and self._held[-1].header.last_offset >= log_end:
            self._held_bytes -= len(self._held.pop().data)

    def restart(self, offset: int) -> None:
        """The log starts and ends at `offset` now."""
        self._drop_held()
        self._delivered = self._committed = offset
        self._whole = True

    def close(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()

    def _drop_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    async def _catch_up(self) -> None:
        """Read what was not held, and call taps with it."""
        try:
            while self._entries and self._delivered < self._committed:
                start = self._delivered
                try:
                    cut = await self._read(start, self._committed)
                except (Unavailable, OSError) as error:
                    _log.warning("%s partition %d: %s", self._topic, self._partition, error)
                    await asyncio.sleep(_AGAIN_S)
                    continue
                if self._delivered != start:
                    continue  # The log was restarted meanwhile.
                self._delivered = max(start + 1, cut.next_offset)
                self._call(
                    [
                        Stamped(header, cut.data[position : position + header.total_bytes])
                        for position, header in split(cut.data)
                    ]
                )
        except LakeMQError as error:
            _log.error(
                "taps of %s partition %d miss offsets %d to %d: %s",
                self._topic, self._partition, self._delivered, self._committed - 1, error,
            )  # fmt: skip
            self._delivered = self._committed
        finally:
            self._reading = None
        self._whole = self._delivered == self._durable_end()

    def _call(self, fresh: Sequence[Stamped]) -> None:
        batches = [
            CommittedBatch(self._topic, self._partition, Offset(header.base_offset), data, columns)
            for header, data, columns in fresh
        ]
        # A copy: a tap may remove itself, or another one.
        for tap, start in tuple(self._entries):
            told = batches
            if batches and batches[0].base_offset < start:
                told = [batch for batch in batches if batch.base_offset >= start]
            if not told:
                continue
            try:
                tap(told)
            except Exception:  # A tap must not raise; one that does must not stop the log.
                _log.exception("a tap of %s partition %d failed", self._topic, self._partition)
