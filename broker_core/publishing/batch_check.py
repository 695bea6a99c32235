"""Checks of a producer's batch before a topic accepts it.

The header, both CRCs and the sizes are checked first, then the columns: in bulk, so that the cost
grows with the bytes and not with Python calls for records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lakemq.broker_core.api.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRequest,
    InvalidTimestamp,
)
from lakemq.broker_core.api.records.batch import (
    CONTROL,
    HAS_HEADERS,
    HEADER_BYTES,
    RECORDS_MAX,
    SPARSE,
    BatchHeader,
    check_body,
    column_places,
    raw_body,
    read_header,
)
from lakemq.broker_core.api.records.headers import NULL_LENGTH, decode_headers
from lakemq.broker_core.api.types import Compression, TopicInfo

if TYPE_CHECKING:
    import numpy as np  # in functions elsewhere: a node is ready before it is needed
    import numpy.typing as npt

    _Bytes = npt.NDArray[np.uint8]
    _Places = npt.NDArray[np.int64]

HEADERS_MAX: Final = 4096
"""Headers of one record."""
_RAW_BYTES: Final = 64 * 1024 * 1024
"""Size up to which a decompressed batch is taken, whatever the topic's limit is (bytes)."""
_CHEAP_RAW_BYTES: Final = 128 * 1024
"""Compressed batches, and those with record headers, take longer to check from here on."""
_FEW_RECORDS: Final = 256
_ONE_BY_ONE: Final = 16
_ONE_BY_ONE_BYTES: Final = 16 * 1024
"""Up to these bounds headers are decoded one by one, which is faster than in bulk; they are too
short to be more than HEADERS_MAX."""


def checked_header(topic: TopicInfo, batch: bytes) -> BatchHeader:
    """Header and both CRCs are right, sizes within limits. BatchTooLarge, CorruptBatch.

    `check_columns` is still to be called.
    """
    limit = topic.config.batch_max_bytes
    if len(batch) > limit:
        raise BatchTooLarge(f"batch of {len(batch)} bytes; topic {topic.name} takes {limit}")
    header = read_header(batch)
    if header.attributes & (SPARSE | CONTROL):
        raise CorruptBatch("producers send neither sparse nor control batches")
    # Before anything is decompressed: the header names the size that will be allocated.
    if header.raw_body_bytes > max(limit, _RAW_BYTES):
        raise BatchTooLarge(f"batch of {header.raw_body_bytes} bytes when decompressed")
    if header.record_count > RECORDS_MAX:
        raise BatchTooLarge(f"batch of {header.record_count} records; {RECORDS_MAX} is the most")
    check_body(header, memoryview(batch)[HEADER_BYTES:])
    return header


def check_times(topic: TopicInfo, times_ms: Sequence[int], now_ms: int) -> None:
    """InvalidTimestamp for a record before 1970, or too far in the future: one that is never old
    would never be retained by its time (KIP-937)."""
    oldest, newest = min(times_ms), max(times_ms)
    ahead_ms = topic.config.timestamp_ahead_max_ms
    if oldest < 0:
        raise InvalidTimestamp(f"topic {topic.name}: timestamp {oldest} ms is before 1970")
    if ahead_ms is not None and newest > now_ms + ahead_ms:
        raise InvalidTimestamp(
            f"topic {topic.name}: timestamp {newest} ms is {newest - now_ms} ms ahead of the "
            f"broker's clock; timestamp_ahead_max_ms is {ahead_ms}"
        )


def age_limit_ms(topic: TopicInfo) -> int | None:
    """Age at which retention deletes by the producers' timestamps; None: it does not."""
    config = topic.config
    by_record = config.retention_by == "record" and "delete" in config.cleanup.split(",")
    return config.retention_ms if by_record else None


def is_cheap(header: BatchHeader) -> bool:
    """Whether `check_columns` is quick enough for the event loop (well below a millisecond)."""
    if header.compression is Compression.NONE and not header.attributes & HAS_HEADERS:
        return True  # three sums over at most 4 bytes a record
    return header.raw_body_bytes <= _CHEAP_RAW_BYTES


def is_cheap_to_open(header: BatchHeader) -> bool:
    """Whether taking the batch apart and making it again is quick enough for the event loop."""
    return header.record_count <= _FEW_RECORDS and header.raw_body_bytes <= _CHEAP_RAW_BYTES


def check_columns(
    header: BatchHeader, batch: bytes, reserved: frozenset[bytes] = frozenset()
) -> None:
    """The body decompresses to its size, the lengths fill it, record headers parse (CorruptBatch),
    and none of them has a name that is `reserved` (InvalidRequest).

    `header` is that of `checked_header`.
    """
    import numpy as np

    raw = raw_body(header, memoryview(batch)[HEADER_BYTES:])
    places, count = column_places(header), header.record_count
    at = heads = places.blobs
    for place in (places.key_lengths, places.value_lengths, places.header_lengths):
        if place >= 0:
            heads, at = at, at + _total(np.frombuffer(raw, "<u4", count, place))
    if at != len(raw):
        raise CorruptBatch(f"columns end at byte {at}, body at byte {len(raw)}")
    if places.header_lengths >= 0:
        lengths = np.frombuffer(raw, "<u4", count, places.header_lengths).astype(np.int64)
        lengths[lengths == NULL_LENGTH] = 0
        _check_headers(np.frombuffer(raw, np.uint8)[heads:], lengths, reserved)


def _total(lengths: npt.NDArray[np.uint32]) -> int:
    import numpy as np

    nulls = int(np.count_nonzero(lengths == NULL_LENGTH))
    # In 64 bits: lengths of 32 bits each would wrap, and a wrapped total could match.
    return int(lengths.sum(dtype=np.uint64)) - NULL_LENGTH * nulls


def _check_headers(heads: _Bytes, lengths: _Places, reserved: frozenset[bytes]) -> None:
    """`heads`, which the lengths fill, holds each record's pairs of name and value."""
    import numpy as np

    ends = np.cumsum(lengths)
    some = lengths > 0
    starts, ends = (ends - lengths)[some], ends[some]
    if len(starts) <= _ONE_BY_ONE and len(heads) <= _ONE_BY_ONE_BYTES:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            for name, _ in decode_headers(heads[start:end].tobytes()):
                if reserved and name.encode() in reserved:
                    raise _reserved(name)
    else:
        _check_in_bulk(heads, starts, ends, reserved)


def _reserved(name: str) -> InvalidRequest:
    return InvalidRequest(f"record header {name} is the broker's own in this topic; leave it out")


def _check_in_bulk(heads: _Bytes, at: _Places, ends: _Places, reserved: frozenset[bytes]) -> None:
    """Every record's first header at once, then every second one, and so on."""
    import numpy as np

    names: list[tuple[_Places, _Places]] = []
    for _ in range(HEADERS_MAX):
        if not len(at):
            break
        _need(at + 2 <= ends)
        name = at + 2
        at = name + (heads[at] + 256 * heads[at + 1].astype(np.int64))
        names.append((name, at))
        _need(at + 4 <= ends)
        size = np.zeros(len(at), np.int64)
        for place in range(4):
            size |= heads[at + place].astype(np.int64) << (8 * place)
        at = at + 4 + np.where(size == NULL_LENGTH, 0, size)
        _need(at <= ends)
        rest = at < ends
        at, ends = at[rest], ends[rest]
    if len(at):
        raise CorruptBatch(f"a record has more than {HEADERS_MAX} headers")
    if names:
        begins, behind = map(np.concatenate, zip(*names, strict=True))
        _check_names(heads, begins, behind)
        for one in reserved:
            found = begins[behind - begins == len(one)]
            for place, byte in enumerate(one):
                found = found[heads[found + place] == byte]
            if len(found):
                raise _reserved(one.decode())


def _need(fits: npt.NDArray[np.bool_]) -> None:
    if not fits.all():
        raise CorruptBatch("record headers end after their length")


def _check_names(heads: _Bytes, starts: _Places, ends: _Places) -> None:
    """Every name is UTF-8: all names in a row are, and none begins within a character."""
    import numpy as np

    some = ends > starts
    starts, ends = starts[some], ends[some]
    edges = np.zeros(len(heads) + 1, np.int8)
    edges[starts], edges[ends] = 1, -1
    names = heads[np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)]
    if not len(names) or names.max() < 0x80:
        return
    try:
        names.tobytes().decode()
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"a record header's name is not UTF-8: {error.reason}") from None
    # Names that are not UTF-8 by themselves may be so in a row: a continuation byte at a name's
    # start shows it.
    if (heads[starts] & 0xC0 == 0x80).any():
        raise CorruptBatch("a record header's name is not UTF-8")
