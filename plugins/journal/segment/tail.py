"""The newest batches of a partition, held in memory for those who read at the tail."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from lakemq.broker_core.api.records.batch import BatchHeader
from lakemq.plugins.journal.segment.walk import Slice

_SHRINK_AT: Final = 4096
"""Dropped entries are cut off the lists once there are this many and they are the larger part."""


class Tail:
    """Batches in offset order without gap, at most `bytes_max` of them, but at least the last."""

    __slots__ = ("_bases", "_batches", "_first", "_next_offsets", "bytes_max", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._first = 0
        self._bases: list[int] = []
        self._next_offsets: list[int] = []
        self._batches: list[bytes] = []

    def add(self, header: BatchHeader, data: bytes) -> None:
        """Add a batch at the end; `trim` makes room."""
        self._bases.append(header.base_offset)
        self._next_offsets.append(header.base_offset + header.last_offset_delta + 1)
        self._batches.append(data)
        self.size_bytes += len(data)

    def trim(self) -> None:
        """Let go of the oldest while there is too much."""
        batches, first, size = self._batches, self._first, self.size_bytes
        last = len(batches) - 1
        while size > self.bytes_max and first < last:
            size -= len(batches[first])
            # Emptied in place: cutting one entry off the front of a list moves all the others.
            batches[first] = b""
            first += 1
        self._first, self.size_bytes = first, size
        if first >= _SHRINK_AT and first * 2 > len(batches):
            del self._bases[:first], self._next_offsets[:first], batches[:first]
            self._first = 0

    @property
    def end(self) -> int:
        """Offset behind the last batch; -1: there is none."""
        return self._next_offsets[-1] if self._next_offsets else -1

    def read(self, offset: int, bytes_max: int, offset_end: int) -> Slice | None:
        """Batches from the one that holds `offset`, or the first behind it, none that reaches
        `offset_end`; None: it is not here (any more)."""
        bases, ends = self._bases, self._next_offsets
        at = bisect_right(bases, offset, lo=self._first) - 1
        if at < self._first or offset >= ends[-1]:
            return None
        if offset >= ends[at]:
            at += 1  # In a gap that a leader's compaction left.
        batches, count = self._batches, bisect_right(ends, offset_end, lo=at)
        if at >= count:
            return None
        size, end = len(batches[at]), at + 1
        while end < count and size + len(batches[end]) <= bytes_max:
            size += len(batches[end])
            end += 1
        data = batches[at] if end == at + 1 else b"".join(batches[at:end])
        return Slice(data, ends[end - 1])

    def cut(self, end: int) -> None:
        """Let go of batches at and behind offset `end`."""
        while self._bases and self._bases[-1] >= end:
            self.size_bytes -= len(self._batches.pop())
            self._bases.pop()
            self._next_offsets.pop()
        self._first = min(self._first, len(self._bases))

    def clear(self) -> None:
        """Let go of everything: the log was cut."""
        self._bases, self._next_offsets, self._batches = [], [], []
        self._first = self.size_bytes = 0
