"""Reads records of one partition for its queue, with a cache of opened batches."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from lakemq.broker_core.api.errors import OffsetOutOfRange, Unavailable
from lakemq.broker_core.api.records.batch import CONTROL, HEADER_BYTES, encode, read_header, split
from lakemq.broker_core.api.records.stored import open_stored
from lakemq.broker_core.api.types import Columns, Compression, FetchResult, Offset

_CACHE_BYTES: Final = 4 * 1024 * 1024
_READ_BYTES: Final = 256 * 1024
_IN_THREAD_BYTES: Final = 128 * 1024
"""Larger bodies are decompressed in a thread, and cut into many records."""
_MANY: Final = 4096


_Rows = tuple[list[int], list[bytes | None], list[bytes | None], list[bytes]]
"""Timestamps, keys, values, encoded headers."""


class Readable(Protocol):
    """What a queue needs of the log of a partition."""

    @property
    def log_start_offset(self) -> Offset:
        """First offset that is still there."""

    @property
    def high_watermark(self) -> Offset:
        """Readers see offsets below it."""

    async def fetch(self, offset: Offset, *, bytes_max: int) -> FetchResult:
        """As `PartitionLog.fetch`, at once."""


class SourceRecord(NamedTuple):
    """One record, its headers still encoded."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: bytes

    @property
    def size(self) -> int:
        """About the bytes that it takes in a batch."""
        return len(self.key or b"") + len(self.value or b"") + len(self.headers) + 32


class OpenedBatch:
    """A stored batch with its columns; without records where its body is corrupt."""

    def __init__(self, data: bytes, position: int, topic: str, partition: int) -> None:
        header = read_header(data, position)
        self.end = header.last_offset + 1
        self.size = HEADER_BYTES
        self.offsets: Sequence[int] = ()
        self.keys: list[bytes | None] = []
        self._rows: _Rows = ([], [], [], [])
        batch = open_stored(data, topic, partition, position)
        if batch is None or header.attributes & CONTROL:
            return
        self.size += header.raw_body_bytes
        self.offsets, self.keys = batch.offsets(), batch.keys()
        self._rows = (batch.timestamps_ms(), self.keys, batch.values(), batch.encoded_headers())

    def row(self, offset: int) -> SourceRecord | None:
        """The record of that offset; None: the batch has none."""
        at = bisect_left(self.offsets, offset)
        if at == len(self.offsets) or self.offsets[at] != offset:
            return None
        times, keys, values, headers = self._rows
        return SourceRecord(offset, times[at], keys[at], values[at], headers[at])


class RecordSource:
    """Reads one partition; caches the batches that were used last."""

    def __init__(self, log: Readable, topic: str, partition: int) -> None:
        self.log = log
        self._place = (topic, partition)
        self._name = f"{topic}/{partition}"
        self._opened: OrderedDict[int, OpenedBatch] = OrderedDict()
        """First offset -> batch, the least recently used first."""
        self._bytes = 0

    async def after(self, offset: int) -> list[OpenedBatch]:
        """Batches from the one that holds `offset` on; none: it is the high watermark.

        Raises OffsetOutOfRange (deleted by retention), CorruptLog, Unavailable.
        """
        found, _ = await self._read(offset)
        return found

    async def _read(self, offset: int) -> tuple[list[OpenedBatch], int]:
        """As `after`, and the high watermark of the replica that answered."""
        got = await self.log.fetch(Offset(offset), bytes_max=_READ_BYTES)
        found = []
        for position, header in split(got.data):
            large = header.compression is not Compression.NONE or header.record_count > _MANY
            if large and header.raw_body_bytes > _IN_THREAD_BYTES:
                opened = await asyncio.to_thread(OpenedBatch, got.data, position, *self._place)
            else:
                opened = OpenedBatch(got.data, position, *self._place)
            self._keep(header.base_offset, opened)
            found.append(opened)
        return found, got.high_watermark

    def _keep(self, base: int, opened: OpenedBatch) -> None:
        old = self._opened.pop(base, None)
        self._bytes += opened.size - (old.size if old is not None else 0)
        self._opened[base] = opened
        while self._bytes > _CACHE_BYTES and len(self._opened) > 1:
            _, gone = self._opened.popitem(last=False)
            self._bytes -= gone.size

    async def rows(self, offsets: Sequence[int]) -> list[SourceRecord]:
        """Records of these offsets, which were readable before, ascending; deleted ones are left
        out. Raises Unavailable where a new leader does not know yet that they are."""
        found: list[SourceRecord] = []
        for offset in offsets:
            opened = self._holding(offset)
            if opened is None:
                try:
                    batches, end = await self._read(offset)
                except OffsetOutOfRange:
                    continue
                if not batches and end <= offset:
                    raise Unavailable(f"offset {offset} of {self._name} can't be read yet")
                opened = batches[0] if batches else None
            row = opened.row(offset) if opened is not None else None
            if row is not None:
                found.append(row)
        return found

    def _holding(self, offset: int) -> OpenedBatch | None:
        for base in reversed(self._opened):
            opened = self._opened[base]
            if base <= offset < opened.end:
                return opened
        return None

    def clear(self) -> None:
        """Empty the cache."""
        self._opened.clear()
        self._bytes = 0


def batch_of(rows: Sequence[SourceRecord]) -> bytes:
    """Rows, ascending, as one record batch with their own offsets."""
    offsets, times, keys, values, headers = zip(*rows, strict=True)
    base = offsets[0]
    dense = offsets[-1] - base + 1 == len(offsets)
    return encode(
        Columns(
            values,
            None if keys.count(None) == len(keys) else keys,
            headers if any(headers) else None,
            times,
        ),
        base_offset=base,
        offset_deltas=None if dense else [offset - base for offset in offsets],
    )
