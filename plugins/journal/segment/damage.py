"""Damage in a segment: where it ends, and so which offsets are lost.

Behind bytes that are no batch, the next real batch must be found without mistaking for one what
only looks so: a record's value may itself be a whole record batch. So, in this order: where the
damaged batch says it ends; where its body's CRC says so (one of the two is right after a single
flip); the first place from which batch follows batch to the next position known to be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import google_crc32c

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.batch import HEADER_BYTES, MAGIC, read_header
from lakemq.plugins.journal.segment.walk import CHUNK_BYTES, BadBatch, BatchAt, Read, walk

_CANDIDATES_MAX: Final = 1000
"""How many places that look like a batch are tried before the next known position is taken."""


class Damage(NamedTuple):
    """A stretch of a segment that holds no whole batch."""

    position: int
    end_position: int
    first_offset: int
    """First offset that is missing."""
    next_offset: int
    """First offset that is there again; -1: none in this segment."""
    reason: str


def readable(read: Read) -> Read:
    """`read` with nothing in place of what the disk cannot give (EIO)."""

    def read_or_nothing(position: int, size: int) -> bytes:
        try:
            return read(position, size)
        except OSError:
            return b""

    return read_or_nothing


def survey(
    read: Read, start: int, end: int, first_offset: int, known: Sequence[int] = ()
) -> Iterator[BatchAt | Damage]:
    """Everything in [start, end): good batches, and damage between them.

    `known`: ascending positions where batches begin, such as an index has.
    """
    at, offset = start, first_offset
    while at < end:
        try:
            for batch in walk(read, at, end):
                yield batch
                at = batch.position + batch.header.total_bytes
                offset = batch.header.last_offset + 1
        except BadBatch as bad:
            limits = [position for position in known if bad.position < position < end]
            after = next_good(read, bad.position, [*limits, end], offset)
            at = end if after is None else after.position
            next_offset = -1 if after is None else after.header.base_offset
            yield Damage(bad.position, at, offset, next_offset, bad.reason)
            offset = max(offset, next_offset)


def next_good(read: Read, bad: int, limits: Sequence[int], offset_min: int) -> BatchAt | None:
    """The next real batch behind the damaged one at `bad`; None: there is none.

    `limits`: the positions behind it at which a batch is known to begin, the segment's end last.
    """
    start, end = bad + 1, limits[-1]
    for limit in limits:
        found = find_batches(read, start, end, offset_min, found_before=limit)
        candidates = list(islice(found, _CANDIDATES_MAX))
        at_limit = batch_at(read, limit, end, offset_min)
        if at_limit is not None:
            candidates.append(at_limit)
        after = (
            _where_it_says(read, bad, candidates)
            or _where_its_crc_says(read, bad, candidates)
            or _first_that_leads_to(read, limit, candidates)
        )
        if after is not None:
            return after
        start = limit
    return None


def _where_it_says(read: Read, bad: int, candidates: Sequence[BatchAt]) -> BatchAt | None:
    """The batch behind the damaged one by the size that its header states."""
    # Read as it lies there (body_bytes): a header that fails its CRC cannot be decoded.
    stated = int.from_bytes(read(bad + 12, 4), "little")
    wanted = bad + HEADER_BYTES + stated
    return next((batch for batch in candidates if batch.position == wanted), None)


def _where_its_crc_says(read: Read, bad: int, candidates: Sequence[BatchAt]) -> BatchAt | None:
    """The batch up to which the damaged one's body has the CRC that its header states."""
    stated = int.from_bytes(read(bad + 16, 4), "little")
    at, crc = bad + HEADER_BYTES, 0
    for batch in candidates:
        if batch.position < at:
            continue
        crc = google_crc32c.extend(crc, read(at, batch.position - at))
        at = batch.position
        if crc == stated:
            return batch
    return None


def _first_that_leads_to(read: Read, limit: int, candidates: Sequence[BatchAt]) -> BatchAt | None:
    """The first batch from which batch follows batch up to `limit` exactly."""
    for batch in candidates:
        try:
            for _ in walk(read, batch.position, limit):
                pass
        except BadBatch:
            continue
        return batch
    return None


def batch_at(read: Read, position: int, end: int, offset_min: int) -> BatchAt | None:
    """The whole batch at `position`, if there is one with such an offset."""
    try:
        batch = next(walk(read, position, end))
    except (BadBatch, StopIteration):
        return None
    return batch if batch.header.base_offset >= offset_min else None


def find_batches(
    read: Read, start: int, end: int, offset_min: int, *, found_before: int = -1
) -> Iterator[BatchAt]:
    """Whatever begins in [start, found_before) and is a whole batch by both CRCs, also within
    another's body. `found_before` -1: up to `end`."""
    stop = end if found_before < 0 else found_before
    at = start
    while at < stop:
        # Chunks overlap by a header, so that one that lies across their border is found.
        chunk = read(at, min(CHUNK_BYTES + HEADER_BYTES, end - at))
        last = min(CHUNK_BYTES, stop - at)
        found = chunk.find(MAGIC)
        while 0 <= found < last:
            if _is_header(chunk, found):
                batch = batch_at(read, at + found, end, offset_min)
                if batch is not None:
                    yield batch
            found = chunk.find(MAGIC, found + 1)
        at += CHUNK_BYTES


def _is_header(chunk: bytes, position: int) -> bool:
    try:
        read_header(chunk, position)
    except CorruptBatch:
        return False
    return True
