"""Walking the record batches of a segment, and cutting out what a fetch asked for.

Bytes come through a callable `read(position, size)`, which gives fewer bytes only at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import HEADER_BYTES, BatchHeader, check_body, read_header

Read = Callable[[int, int], bytes]

CHUNK_BYTES: Final = 1024 * 1024
"""How much a walk reads at a time (bytes); a larger batch is read whole."""


class BatchAt(NamedTuple):
    """A whole, checked batch and where it lies."""

    position: int
    header: BatchHeader
    data: bytes


class BadBatch(Exception):
    """What lies at `position` is no whole batch. Never crosses the journal's door."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"position {position}: {reason}")
        self.position = position
        self.reason = reason


def walk(
    read: Read, start: int, end: int, *, next_offset: int = -1, gaps: bool = False, epoch: int = -1
) -> Iterator[BatchAt]:
    """Every batch in [start, end), header and body CRC checked. BadBatch at the first bad one.

    With `next_offset` >= 0 the batches must also follow each other from there on as they do in a
    log: epochs never fall, from `epoch` on, and offsets have no gap, unless `gaps` allows those of
    compaction, and a first batch that begins below `next_offset` and reaches over it.
    """
    chunk, chunk_at, at = b"", start, start
    while at < end:
        behind = at - chunk_at
        if len(chunk) - behind < HEADER_BYTES:
            chunk, chunk_at, behind = read(at, min(CHUNK_BYTES, end - at)), at, 0
        try:
            header = read_header(chunk, behind)
            size = header.total_bytes
            if at + size > end:
                raise CorruptBatch(f"batch of {size} bytes, {end - at} are there")
            if len(chunk) - behind < size:
                chunk, chunk_at, behind = read(at, min(max(size, CHUNK_BYTES), end - at)), at, 0
            check_body(header, chunk[behind + HEADER_BYTES : behind + size])
        except CorruptBatch as error:
            raise BadBatch(at, str(error)) from None
        if next_offset >= 0:
            begins = gaps and at == 0 and header.last_offset >= next_offset
            if (
                header.base_offset != next_offset
                and not begins
                and (header.base_offset < next_offset or not gaps)
            ):
                raise BadBatch(at, f"base offset {header.base_offset}, expected {next_offset}")
            if header.leader_epoch < epoch:
                raise BadBatch(at, f"epoch {header.leader_epoch} behind epoch {epoch}")
            next_offset, epoch = header.last_offset + 1, header.leader_epoch
        yield BatchAt(at, header, chunk[behind : behind + size])
        at += size


def walk_headers(read: Read, start: int, end: int) -> Iterator[BatchHeader]:
    """Headers of all batches in [start, end), bodies not looked at. BadBatch at a bad one."""
    at = start
    while at < end:
        chunk, behind = read(at, min(CHUNK_BYTES, end - at)), 0
        while behind + HEADER_BYTES <= len(chunk):
            try:
                header = read_header(chunk, behind)
            except CorruptBatch as error:
                raise BadBatch(at + behind, str(error)) from None
            yield header
            behind += header.total_bytes
        if not behind:
            raise BadBatch(at, f"{len(chunk)} bytes are no header")
        at += behind


class Slice(NamedTuple):
    """Whole batches for a fetch. `data` is empty if no batch reaches the offset asked for."""

    data: bytes
    next_offset: int


class _Cut:
    """Grows a slice batch by batch over one buffer that begins at `start` in its segment."""

    def __init__(self, buffer: bytes, start: int) -> None:
        self.buffer = buffer
        self.start = start
        self.at = 0
        self.first = -1
        self.next_offset = -1

    def take(self, header: BatchHeader) -> None:
        if self.first < 0:
            self.first = self.at
        self.at += header.total_bytes
        self.next_offset = header.last_offset + 1

    def slice(self) -> Slice:
        if self.first < 0:
            return Slice(b"", -1)
        return Slice(self.buffer[self.first : self.at], self.next_offset)


def cut_slice(
    read: Read, start: int, end: int, *, offset: int, offset_end: int, bytes_max: int, skip: int
) -> Slice:
    """Whole batches of [start, end) from the one that holds `offset`, up to `bytes_max`, at
    least one; none that reaches `offset_end` or beyond. `skip`: bytes that may precede the batch.

    Every batch given out has passed its CRCs. BadBatch if the first one has not; damage behind
    good batches ends the slice, so that the next fetch meets it first.
    """
    cut = _Cut(read(start, min(end - start, bytes_max + skip)), start)
    while start + cut.at < end:
        try:
            header = _header_at(read, cut, end)
            if header.last_offset < offset:
                cut.at += header.total_bytes
                continue
            if header.last_offset >= offset_end:
                break
            if cut.first >= 0 and cut.at + header.total_bytes - cut.first > bytes_max:
                break
            _check_whole(read, cut, header, end)
        except CorruptBatch as error:
            if cut.first >= 0:
                break
            raise BadBatch(cut.start + cut.at, str(error)) from None
        cut.take(header)
    return cut.slice()


def _header_at(read: Read, cut: _Cut, end: int) -> BatchHeader:
    """The header where the cut stands; reads on if the buffer ends before it."""
    if len(cut.buffer) - cut.at < HEADER_BYTES and cut.first < 0:
        _refill(read, cut, end, CHUNK_BYTES)
    elif len(cut.buffer) - cut.at < HEADER_BYTES:
        cut.buffer += read(cut.start + len(cut.buffer), min(HEADER_BYTES, end - cut.start))
    return read_header(cut.buffer, cut.at)


def _check_whole(read: Read, cut: _Cut, header: BatchHeader, end: int) -> None:
    size = header.total_bytes
    if cut.start + cut.at + size > end:
        raise CorruptBatch(f"batch of {size} bytes ends behind the segment's {end} bytes")
    if len(cut.buffer) - cut.at < size:
        if cut.first < 0:
            _refill(read, cut, end, size)
        else:
            missing = cut.at + size - len(cut.buffer)
            # Grown rather than restarted: batches of the slice lie before it.
            cut.buffer += read(cut.start + len(cut.buffer), missing)
    check_body(header, cut.buffer[cut.at + HEADER_BYTES : cut.at + size])


def _refill(read: Read, cut: _Cut, end: int, size: int) -> None:
    """Restart the buffer at the cut: nothing before it is wanted."""
    cut.start += cut.at
    cut.at = 0
    cut.buffer = read(cut.start, min(end - cut.start, size))
