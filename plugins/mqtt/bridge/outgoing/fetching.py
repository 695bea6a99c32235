"""Fetches what follows each cursor, from whichever node leads its partition. Edge: awaits
readers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import Final

from lakemq.broker_core.api.backoff import Backoff
from lakemq.broker_core.api.errors import LakeMQError, OffsetOutOfRange, Unavailable, UnknownTopic
from lakemq.broker_core.api.ports import Broker, PartitionReader
from lakemq.broker_core.api.records.stored import readable_batches
from lakemq.broker_core.api.types import Offset
from lakemq.plugins.mqtt.bridge.outgoing.outbox import Outbox, PartitionCursor
from lakemq.plugins.mqtt.bridge.records import BridgeRecord, BridgeRecordReader

_log = logging.getLogger(__name__)

FETCH_BYTES: Final = 256 * 1024
WAIT_MS: Final = 5_000
LOST_S: Final = 30.0
"""A new leader may know for a moment of fewer records than were read before. Those that are not
back after so long are lost (an unclean election, a lost disk)."""
_RETRY_MIN_MS: Final = 50
_RETRY_MAX_MS: Final = 2_000
_rng: Final = random.Random()


class CursorFetcher:
    """Of one cursor: one fetch is held at a time, and the next begins when it was taken."""

    def __init__(
        self,
        broker: Broker,
        outbox: Outbox,
        cursor: PartitionCursor,
        link_name: str,
        rows: BridgeRecordReader,
        fetched: Callable[[], None],
    ) -> None:
        """`fetched`: called when there are records to take."""
        self.cursor = cursor
        self.lost = 0
        """Records that were gone before they were read."""
        self.high_watermark = cursor.next_offset
        """As last heard."""
        self._broker = broker
        self._outbox = outbox
        self._link_name = link_name
        self._reader = rows
        self._fetched = fetched
        self._rows: Iterator[BridgeRecord] | None = None
        self._end = 0
        """Offset behind `_rows`."""
        self._taken = asyncio.Event()
        self._taken.set()
        self._beyond_since_s: float | None = None

    def next(self) -> BridgeRecord | None:
        """The next record; None: there is none yet, and up to `end` none is left."""
        return next(self._rows, None) if self._rows is not None else None

    def finish(self) -> int | None:
        """All that was fetched is taken: the offset behind it, None without a fetch. Another one
        begins."""
        if self._rows is None:
            return None
        self._rows = None
        self._taken.set()
        return self._end

    async def run(self) -> None:
        """Fetch until it is cancelled."""
        backoff, told = Backoff(_RETRY_MIN_MS, _RETRY_MAX_MS, _rng.random), ""
        while True:
            await self._taken.wait()
            try:
                await self._fetch()
            except LakeMQError as error:
                # A topic that was deleted is dropped when the catalog is looked at next.
                if not isinstance(error, UnknownTopic) and str(error) != told:
                    told = str(error)
                    _log.warning("bridge %s: %s", self._link_name, error)
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()
                told = ""

    async def _fetch(self) -> None:
        cursor = self.cursor
        reader = reader_of(self._broker, cursor)
        start = cursor.next_offset
        try:
            got = await reader.fetch(Offset(start), bytes_max=FETCH_BYTES, wait_ms=WAIT_MS)
        except OffsetOutOfRange:
            await self._find_again(reader)
            return
        self._beyond_since_s = None
        self.high_watermark = max(self.high_watermark, got.high_watermark)
        if got.next_offset > start:
            self._rows = rows_of(self._reader, cursor, got.data, start)
            self._end = got.next_offset
            self._taken.clear()
            self._fetched()

    async def _find_again(self, reader: PartitionReader) -> None:
        """Go on where the log starts, if retention was quicker; or at its end, if what lies before
        the cursor is lost for good. Raises Unavailable while that is open."""
        cursor, name = self.cursor, self._link_name
        start, end = await reader.bounds()
        if cursor.next_offset < start:
            gone = start - cursor.next_offset
            self.lost += gone
            _log.error(
                "bridge %s: %d records of %s-%d were deleted by retention before they went out",
                name, gone, cursor.topic, cursor.partition,
            )  # fmt: skip
            self._outbox.skip(cursor, start)
            return
        now_s = asyncio.get_running_loop().time()
        if self._beyond_since_s is None:
            self._beyond_since_s = now_s
        if cursor.next_offset <= end or now_s - self._beyond_since_s < LOST_S:
            raise Unavailable(
                f"{cursor.topic}-{cursor.partition} ends at offset {end} now, before "
                f"{cursor.next_offset}, where the link goes on"
            )
        _log.error(
            "bridge %s: %s-%d ends at offset %d, before %d, up to where records went out: records "
            "were lost",
            name, cursor.topic, cursor.partition, end, cursor.next_offset,
        )  # fmt: skip
        self._beyond_since_s = None
        self.high_watermark = end
        self.lost += self._outbox.go_back(cursor, end)


def reader_of(broker: Broker, cursor: PartitionCursor) -> PartitionReader:
    """Reads the cursor's partition. Raises UnknownTopic, also where another topic has its name."""
    if broker.topic(cursor.topic).topic_id != cursor.topic_id:
        raise UnknownTopic(f"topic {cursor.topic!r} was deleted; another one has its name")
    return broker.reader(cursor.topic, cursor.partition)


def rows_of(
    reader: BridgeRecordReader, cursor: PartitionCursor, data: bytes, start: int
) -> Iterator[BridgeRecord]:
    """Records of fetched `data` from offset `start` on."""
    batches = readable_batches(data, cursor.topic, cursor.partition, start=start)
    return reader.rows(batches, start)
