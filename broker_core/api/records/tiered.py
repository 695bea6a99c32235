"""Sealed segments that an object store holds too: an optional ability of partition logs.

A client with access to the store reads their records there instead of fetching them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

SEGMENTS_MAX: Final = 1000
"""Segments of one answer."""


@dataclass(frozen=True, slots=True)
class TieredSegment:
    """One segment: record batches back to back, as `docs/formats/record-batch.md` has them."""

    base_offset: int
    next_offset: int
    """First offset after its range; the last records before it may have been compacted away."""
    store_url: str
    """What precedes `name` in the object's URL, `/` at the end. Never holds secrets."""
    name: str
    position: int
    """First byte of the segment within the object; other positions are relative to it."""
    size_bytes: int
    crc32c: int
    """Of the whole segment."""
    gaps: bool
    """Whether offsets between batches may be missing because of compaction."""
    read_position: int
    """What was asked for lies in the segment's bytes [read_position, read_end_position), and a
    batch begins there."""
    read_end_position: int


@dataclass(frozen=True, slots=True)
class TieredSegments:
    """Answer of `TieredLog.tiered_segments`."""

    log_start_offset: int
    high_watermark: int
    segments: tuple[TieredSegment, ...]
    """By offset; segments that are not in the store are left out."""
    more: bool
    """Whether there are others after the last one."""


@runtime_checkable
class TieredLog(Protocol):
    """A partition log that may have segments in an object store."""

    async def tiered_segments(
        self, start: int, end: int, *, count_max: int = SEGMENTS_MAX
    ) -> TieredSegments:
        """Those that hold any of the offsets [start, end), the first `count_max`. Unavailable."""
