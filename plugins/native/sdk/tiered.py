"""Reading a topic's sealed segments where an object store holds them.

The bytes are the same that the broker would send: record batches, each under its own CRCs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    RecordBatch,
    check_body,
    read_header,
)
from lakemq.broker_core.api.records.tiered import TieredSegment
from lakemq.plugins.native.sdk.consumer.corrupt import CorruptCallback

ReadAt = Callable[[int, int], bytes]
"""`read(position, size)` -> the object's bytes there; fewer only where it ends."""

CHUNK_BYTES: Final = 8 * 1024 * 1024


def stored_batches(
    read: ReadAt,
    segment: TieredSegment,
    start: int,
    end: int,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    on_corrupt: CorruptCallback | None = None,
) -> Iterator[RecordBatch]:
    """The segment's batches that touch offsets [start, end), in order, CRCs checked.

    CorruptBatch, naming the object and the place, for what is no batch, and for batches that are
    not those of this segment: they must follow each other without a gap unless it may have some.
    A batch that is whole outside and corrupt inside is no damage of the object: with `on_corrupt`
    it is told there and left out.
    """
    chain = _Chain(segment, start)
    at, limit = segment.read_position, segment.read_end_position
    chunk, chunk_at = b"", at
    try:
        while at < limit:
            behind = at - chunk_at
            # A chunk may end within a header: the next one begins at this batch.
            if len(chunk) - behind < HEADER_BYTES:
                size = min(max(chunk_bytes, HEADER_BYTES), limit - at)
                chunk, chunk_at, behind = read(segment.position + at, size), at, 0
            header = read_header(chunk, behind)
            chain.follow(header)
            if header.base_offset >= end:
                return
            size = header.total_bytes
            if at + size > limit:
                raise CorruptBatch(f"a batch of {size} bytes, {limit - at} are there")
            # Batches before the range are stepped over by their header, without reading or checking
            # their body.
            if header.last_offset >= start:
                if len(chunk) - behind < size:
                    wanted = min(max(size, chunk_bytes), limit - at)
                    chunk, chunk_at, behind = read(segment.position + at, wanted), at, 0
                batch = _opened(chunk, behind, header, on_corrupt)
                if batch is not None:
                    yield batch
            at += size
        if limit < segment.size_bytes:
            chain.close(end)
    except CorruptBatch as error:
        raise CorruptBatch(
            f"{segment.store_url}{segment.name}, byte {segment.position + at}: {error}"
        ) from None


def _opened(
    chunk: bytes, position: int, header: BatchHeader, on_corrupt: CorruptCallback | None
) -> RecordBatch | None:
    try:
        return RecordBatch(chunk, position, columns_later=True)
    except CorruptBatch as error:
        if on_corrupt is None:
            raise
        # Tells damage of the object (raised here) from a batch that was corrupt when it was stored.
        check_body(header, chunk[position + HEADER_BYTES : position + header.total_bytes])
        on_corrupt(header.base_offset, header.last_offset, error)
        return None


class _Chain:
    """Whether batches are those of the segment, by their offsets."""

    def __init__(self, segment: TieredSegment, start: int) -> None:
        self._segment = segment
        self._exact = not segment.gaps
        self._next = segment.base_offset
        # An index leads into the middle of the segment: the first batch there may begin before
        # `start`, not behind it.
        self._first_max = max(start, segment.base_offset) if segment.read_position else None
        """Where reading begins within the segment: what the first batch may begin with at most."""

    def follow(self, header: BatchHeader) -> None:
        base, segment = header.base_offset, self._segment
        if self._first_max is not None:
            good = segment.base_offset <= base <= self._first_max
            self._first_max = None
        else:
            good = base == self._next if self._exact else base >= self._next
        if not good or header.last_offset >= segment.next_offset:
            raise CorruptBatch(
                f"a batch of offsets {base} to {header.last_offset} where {self._next} is expected "
                f"in a segment of {segment.base_offset} to {segment.next_offset - 1}"
            )
        self._next = header.last_offset + 1

    def close(self, end: int) -> None:
        """Reading ends within the segment: all that was asked for must have come."""
        if self._exact and self._next < end:
            raise CorruptBatch(f"batches end at offset {self._next}, before {end}")
