"""Sparse index of a segment: offset -> position, timestamp -> position; and its bytes.

One entry about every `index_interval_bytes`: a batch's base offset, its position, and the newest
timestamp of all records *before* it. One index so serves both look-ups. An index is only a hint
that can be made again from its segment: any doubt about its bytes and it is.

Bytes (little-endian), `docs/formats/journal.md`: 64-byte header, then the columns of offsets (i64),
positions (i64) and timestamps (i64), `entries` numbers each.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Final

import google_crc32c

from lakemq.broker_core.api.records.batch import BatchHeader

MAGIC: Final = b"LMQI"
VERSION: Final = 1
HEADER_BYTES: Final = 64
NO_TIMESTAMP: Final = -(2**63)
"""Older than every record's timestamp."""
_HEADER: Final = struct.Struct("<4sIHHIqqqqq8x")
assert _HEADER.size == HEADER_BYTES
_ENTRY_BYTES: Final = 24


class BadIndex(Exception):
    """Bytes that are no index of this version. Never crosses the journal's door."""


def _column() -> array[int]:
    return array("q")


@dataclass
class SparseIndex:
    """Index of one segment, growing while the segment does.

    One thread adds; others may look up meanwhile: `times` grows last, and look-ups count that.
    """

    base_offset: int
    generation: int = 0
    interval_bytes: int = 65536
    covered_bytes: int = 0
    """Size of the part of the segment that was taken in, which ends with a whole batch."""
    next_offset: int = 0
    """Offset behind the last record taken in."""
    max_timestamp_ms: int = NO_TIMESTAMP
    offsets: array[int] = field(default_factory=_column)
    positions: array[int] = field(default_factory=_column)
    times: array[int] = field(default_factory=_column)

    def __post_init__(self) -> None:
        self.next_offset = max(self.next_offset, self.base_offset)

    def add(self, header: BatchHeader) -> None:
        """Take in the batch that lies at `covered_bytes`."""
        position = self.covered_bytes
        if not self.positions or position - self.positions[-1] >= self.interval_bytes:
            self.offsets.append(header.base_offset)
            self.positions.append(position)
            self.times.append(self.max_timestamp_ms)
        if header.max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = header.max_timestamp_ms
        self.next_offset = header.last_offset + 1
        # Last: readers go no further than it.
        self.covered_bytes = position + header.total_bytes

    def position_of(self, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`."""
        entry = bisect_right(self.offsets, offset, hi=len(self.times)) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_of_time(self, timestamp_ms: int) -> int:
        """Position from which on to look for the first record that is not older."""
        entry = bisect_left(self.times, timestamp_ms) - 1
        return self.positions[entry] if entry >= 0 else 0

    def position_behind(self, position: int) -> int:
        """Position of the next indexed batch behind `position`; `covered_bytes` if none."""
        entry = bisect_right(self.positions, position)
        return self.positions[entry] if entry < len(self.positions) else self.covered_bytes


def encode_index(index: SparseIndex) -> bytes:
    """Index -> bytes."""
    packed = _HEADER.pack(
        MAGIC, 0, VERSION, 0, len(index.times), index.base_offset, index.generation,
        index.next_offset, index.covered_bytes, index.max_timestamp_ms,
    )  # fmt: skip
    columns = (index.offsets.tobytes(), index.positions.tobytes(), index.times.tobytes())
    guarded = packed[8:] + b"".join(columns)
    return b"".join((MAGIC, google_crc32c.value(guarded).to_bytes(4, "little"), guarded))


def decode_index(data: bytes, interval_bytes: int) -> SparseIndex:
    """Bytes -> index; bytes behind it are not looked at. BadIndex says what is wrong."""
    if len(data) < HEADER_BYTES:
        raise BadIndex(f"{len(data)} bytes; the header alone has {HEADER_BYTES}")
    magic, crc, version, _, entries, base_offset, generation, next_offset, covered, newest = (
        _HEADER.unpack_from(data)
    )
    if magic != MAGIC or version != VERSION:
        raise BadIndex(f"magic {magic!r} version {version}, not {MAGIC!r} version {VERSION}")
    end = HEADER_BYTES + entries * _ENTRY_BYTES
    if len(data) < end:
        raise BadIndex(f"{len(data)} bytes; {entries} entries need {end}")
    if google_crc32c.value(data[8:end]) != crc:
        raise BadIndex("CRC-32C does not match")
    index = SparseIndex(base_offset, generation, interval_bytes, covered, next_offset, newest)
    at = HEADER_BYTES
    for column in (index.offsets, index.positions, index.times):
        column.frombytes(data[at : at + 8 * entries])
        at += 8 * entries
    return index


def index_bytes(data: bytes) -> int:
    """Size of the index at the beginning of `data`, once `decode_index` has accepted it."""
    (entries,) = struct.unpack_from("<I", data, 12)
    return HEADER_BYTES + int(entries) * _ENTRY_BYTES
