"""The log of one partition as a queue reads it, whichever node leads it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lakemq.broker_core.api.errors import LakeMQError, OffsetOutOfRange
from lakemq.broker_core.api.ports import Broker, PartitionLog
from lakemq.broker_core.api.types import FetchResult, Offset

_log: Final = logging.getLogger(__name__)
_WAIT_MS: Final = 10_000
_WAIT_BYTES: Final = 256 * 1024
_PAUSE_S: Final = 0.5
"""Between waits, where the partition can't be read."""


class SourceLog:
    """Implements `Readable`. Of a partition that another node leads, the bounds are what that node
    said last; `await_more` has it tell of records that come."""

    def __init__(
        self, broker: Broker, topic: str, partition: int, on_more: Callable[[], None]
    ) -> None:
        """`on_more` is called when there may be more to read. Raises UnknownTopic,
        UnknownPartition."""
        self._broker = broker
        self._place = (topic, partition)
        self._reader = broker.reader(topic, partition)
        self._on_more = on_more
        self._start = self._end = Offset(0)
        self._ahead: tuple[int, FetchResult] | None = None
        """What came while it was waited for: an offset, and the answer to a fetch from there."""
        self._waiting: asyncio.Task[None] | None = None

    def _led(self) -> PartitionLog | None:
        """The log, where this node leads the partition."""
        with suppress(LakeMQError):
            if self._broker.serves(*self._place):
                return self._broker.partition(*self._place)
        return None

    @property
    def log_start_offset(self) -> Offset:
        """As far as is known."""
        log = self._led()
        return self._start if log is None else log.log_start_offset

    @property
    def high_watermark(self) -> Offset:
        """As far as is known."""
        log = self._led()
        return self._end if log is None else log.high_watermark

    async def fetch(self, offset: Offset, *, bytes_max: int) -> FetchResult:
        """As `PartitionReader.fetch`."""
        log = self._led()
        if log is not None:
            return await log.fetch(offset, bytes_max=bytes_max)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == offset:
            return ahead[1]
        try:
            got = await self._reader.fetch(offset, bytes_max=bytes_max)
        except OffsetOutOfRange:
            await self.look()
            raise
        self._told(got)
        return got

    def _told(self, got: FetchResult) -> None:
        # Another replica may have told more before.
        self._start = max(self._start, got.log_start_offset)
        self._end = max(self._end, got.high_watermark)

    async def look(self) -> None:
        """Learn where the log starts and ends. Raises as `PartitionReader.bounds`."""
        if self._led() is None:
            self._start, self._end = await self._reader.bounds()

    # -- records that come

    def await_more(self) -> None:
        """All that was there has been read: call `on_more` when there may be more, once. Nothing is
        done where this node leads the partition, whose taps tell."""
        if self._waiting is None and self._led() is None:
            self._waiting = asyncio.create_task(self._await_more())

    async def _await_more(self) -> None:
        offset = self._end
        try:
            got = await self._reader.fetch(offset, bytes_max=_WAIT_BYTES, wait_ms=_WAIT_MS)
            self._told(got)
            if got.data:
                self._ahead = (offset, got)
        except OffsetOutOfRange:  # the first time, or deleted meanwhile, or lost
            await self._look_quietly()
        except LakeMQError as error:
            _log.info("%s/%d: %s", *self._place, error)
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._waiting = None
        self._on_more()

    async def _look_quietly(self) -> None:
        try:
            await self.look()
        except LakeMQError as error:
            _log.info("%s/%d: %s", *self._place, error)

    def rest(self) -> None:
        """Wait no more, and keep nothing."""
        self._ahead = None
        if self._waiting is not None:
            self._waiting.cancel()
