"""Sealed segments that an object store holds too: an optional ability of partition logs.

Who can read there itself need not ask the broker for their records.
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
    """Offset behind its range, which may be behind its last record."""
    store_url: str
    """What precedes `name` in the object's URL, `/` at the end. Never holds secrets."""
    name: str
    position: int
    """First byte of the segment within the object; all other places count from there."""
    size_bytes: int
    crc32c: int
    """Of the whole segment."""
    gaps: bool
    """Whether offsets between batches may be absent, as compaction leaves them."""
    read_position: int
    """What was asked for lies in the segment's bytes [read_position, read_end_position), and a
    batch begins there."""
    read_end_position: int


@dataclass(frozen=True, slots=True)
class TieredSegments:
    log_start_offset: int
    high_watermark: int
    segments: tuple[TieredSegment, ...]
    """By offset; between them may be some that no store holds."""
    more: bool
    """There are others behind the last one."""


@runtime_checkable
class TieredLog(Protocol):
    """A partition log that may have segments in an object store."""

    async def tiered_segments(
        self, start: int, end: int, *, count_max: int = SEGMENTS_MAX
    ) -> TieredSegments:
        """Those that hold any of the offsets [start, end), the first `count_max`. Unavailable."""
