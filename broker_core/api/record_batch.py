"""Record batch: bytes <-> columns. The unit of append, CRC and compression. Pure.

A batch is a fixed 80-byte little-endian header and a body of columns, described byte by byte in
`docs/formats/record-batch.md`. Two CRC-32C sums guard it: the producer's over the body, and one
over the header, which the broker makes anew when it stamps the base offset, so stamping never
touches the body.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import google_crc32c
import lz4.frame
import zstandard

from broker_core.api.errors import CorruptBatch
from broker_core.api.record_headers import NULL_LENGTH, decode_headers
from broker_core.api.types import Columns, Compression, Offset, Record

MAGIC: Final = b"LMQB"
VERSION: Final = 1
HEADER_BYTES: Final = 80
BODY_BYTES_MAX: Final = 256 * 1024 * 1024
"""No body, stored or decompressed, is larger (bytes); readers refuse before taking memory."""

_HEADER: Final = struct.Struct("<4sIBBHIIIqiHHqiIqqII")
assert _HEADER.size == HEADER_BYTES
assert sys.byteorder == "little" and array("I").itemsize == 4, "columns are little-endian"

# Attribute bits.
_CODEC_MASK: Final = 0x0007
APPEND_TIME: Final = 0x0008
"""Timestamps were given by the broker; without it they are the producer's."""
WIDE_TIMESTAMPS: Final = 0x0010
HAS_KEYS: Final = 0x0020
HAS_HEADERS: Final = 0x0040
SPARSE: Final = 0x0080
CONTROL: Final = 0x0100
"""Holds markers for readers (transactions), not user records."""
_KNOWN_ATTRIBUTES: Final = 0x01FF


class BatchHeader(NamedTuple):
    """The fixed header, decoded. Sizes in bytes, times in ms since the epoch."""

    attributes: int
    body_bytes: int
    """Size of the body as stored."""
    body_crc32c: int
    record_count: int
    """Number of records, at least 1."""
    base_offset: int
    leader_epoch: int
    producer_epoch: int
    producer_id: int
    """-1: not an idempotent producer."""
    base_sequence: int
    raw_body_bytes: int
    """Size of the body when decompressed."""
    base_timestamp_ms: int
    max_timestamp_ms: int
    last_offset_delta: int
    """Offset of the last record less `base_offset`; `count - 1` unless compaction made gaps."""

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + self.body_bytes

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & _CODEC_MASK)


class ProducerStamp(NamedTuple):
    """Identity of an idempotent producer's batch."""

    producer_id: int
    epoch: int
    base_sequence: int


NOT_IDEMPOTENT: Final = ProducerStamp(-1, 0, -1)


def pack_header(header: BatchHeader) -> bytes:
    """Header -> 80 bytes, its CRC computed."""
    packed = _HEADER.pack(
        MAGIC, 0, VERSION, 0, header.attributes, header.body_bytes, header.body_crc32c,
        header.record_count, header.base_offset, header.leader_epoch, header.producer_epoch, 0,
        header.producer_id, header.base_sequence, header.raw_body_bytes,
        header.base_timestamp_ms, header.max_timestamp_ms, header.last_offset_delta, 0,
    )  # fmt: skip
    guarded = packed[8:]
    return b"".join((MAGIC, google_crc32c.value(guarded).to_bytes(4, "little"), guarded))


def read_header(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Decode and check the header at `position`. CorruptBatch names the field that is wrong.

    The caller still has to see that the body is there and that its CRC holds (`check_body`).
    """
    if len(data) - position < HEADER_BYTES:
        raise CorruptBatch(f"header cut short: {len(data) - position} of {HEADER_BYTES} bytes")
    (magic, crc, version, _, attributes, body_bytes, body_crc, count, base_offset, leader_epoch,
     producer_epoch, _, producer_id, base_sequence, raw_body_bytes, base_timestamp_ms,
     max_timestamp_ms, last_offset_delta, _) = _HEADER.unpack_from(data, position)  # fmt: skip
    if magic != MAGIC:
        raise CorruptBatch(f"magic is {bytes(magic)!r}, not {MAGIC!r}")
    if crc != google_crc32c.value(bytes(data[position + 8 : position + HEADER_BYTES])):
        raise CorruptBatch("header CRC-32C does not match")
    if version != VERSION:
        raise CorruptBatch(f"version {version}; this build reads version {VERSION}")
    header = BatchHeader(
        attributes, body_bytes, body_crc, count, base_offset, leader_epoch, producer_epoch,
        producer_id, base_sequence, raw_body_bytes, base_timestamp_ms, max_timestamp_ms,
        last_offset_delta,
    )  # fmt: skip
    _check_sense(header)
    return header


def _check_sense(header: BatchHeader) -> None:
    """Refuse what no encoder writes, even under a right CRC: sizes are bounded before use."""
    if header.attributes & ~_KNOWN_ATTRIBUTES or header.attributes & _CODEC_MASK > Compression.ZSTD:
        raise CorruptBatch(f"unknown attributes {header.attributes:#06x}")
    if max(header.body_bytes, header.raw_body_bytes) > BODY_BYTES_MAX:
        raise CorruptBatch(f"body of {header.raw_body_bytes} bytes; {BODY_BYTES_MAX} is the most")
    if header.compression is Compression.NONE and header.body_bytes != header.raw_body_bytes:
        raise CorruptBatch("uncompressed body with two sizes")
    if header.record_count < 1 or header.raw_body_bytes < 8 * header.record_count:
        raise CorruptBatch(f"{header.record_count} records in {header.raw_body_bytes} bytes")
    dense = header.last_offset_delta == header.record_count - 1
    if not dense and (
        not header.attributes & SPARSE or header.last_offset_delta < header.record_count
    ):
        raise CorruptBatch(
            f"last offset delta {header.last_offset_delta}, {header.record_count} records"
        )


def check_body(header: BatchHeader, body: bytes) -> None:
    """CorruptBatch unless `body` is the stored body that the header's CRC was made over."""
    if len(body) != header.body_bytes:
        raise CorruptBatch(f"body of {len(body)} bytes, header says {header.body_bytes}")
    if google_crc32c.value(body) != header.body_crc32c:
        raise CorruptBatch("body CRC-32C does not match")


def split(data: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in `data`, back to back. CorruptBatch on a cut tail."""
    position, end = 0, len(data)
    while position < end:
        header = read_header(data, position)
        if position + header.total_bytes > end:
            raise CorruptBatch(f"batch at byte {position} ends behind byte {end}")
        yield position, header
        position += header.total_bytes


def stamp(
    data: bytes, header: BatchHeader, base_offset: int, leader_epoch: int
) -> tuple[BatchHeader, bytes]:
    """The batch with its place in the log: new header and header bytes + the body as it was."""
    stamped = header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    return stamped, pack_header(stamped) + data[HEADER_BYTES:]


def encode(
    columns: Columns,
    *,
    now_ms: int = 0,
    compression: Compression = Compression.NONE,
    producer: ProducerStamp = NOT_IDEMPOTENT,
    base_offset: int = 0,
    offset_deltas: Sequence[int] | None = None,
    leader_epoch: int = 0,
    attributes: int = 0,
) -> bytes:
    """Columns -> one record batch. `now_ms` stands in for absent timestamps.

    `offset_deltas` (ascending from 0) is for compaction alone, where offsets have gaps.
    """
    keys, headers = columns.keys, columns.headers
    count = len(columns.values)
    if not count:
        raise ValueError("a record batch holds at least one record")
    for name, column in zip(Columns._fields[1:], columns[1:], strict=True):
        if column is not None and len(column) != count:
            raise ValueError(f"{name} has {len(column)} entries, values has {count}")
    attributes |= compression
    parts: list[bytes] = []
    last_delta = count - 1
    if offset_deltas is not None:
        attributes |= SPARSE
        last_delta = offset_deltas[-1]
        parts.append(array("I", offset_deltas).tobytes())
    times = columns.timestamps_ms
    base_ms, max_ms = (min(times), max(times)) if times is not None else (now_ms, now_ms)
    if times is None:
        attributes |= APPEND_TIME
    attributes |= WIDE_TIMESTAMPS if max_ms - base_ms > 0xFFFF_FFFF else 0
    parts.append(_time_column(times, base_ms, count, bool(attributes & WIDE_TIMESTAMPS)))
    if keys is not None:
        attributes |= HAS_KEYS
        parts.append(_lengths(keys))
    parts.append(_lengths(columns.values))
    if headers is not None:
        attributes |= HAS_HEADERS
        parts.append(_lengths(headers))
    parts += [_joined(column) for column in (keys, columns.values, headers) if column is not None]
    raw = b"".join(parts)
    if len(raw) > BODY_BYTES_MAX:
        raise ValueError(f"batch body of {len(raw)} bytes; {BODY_BYTES_MAX} is the most")
    body = raw if compression is Compression.NONE else _compress(raw, compression)
    header = BatchHeader(
        attributes, len(body), google_crc32c.value(body), count, base_offset, leader_epoch,
        producer.epoch, producer.producer_id, producer.base_sequence, len(raw), base_ms, max_ms,
        last_delta,
    )  # fmt: skip
    return pack_header(header) + body


def _lengths(column: Sequence[bytes | None]) -> bytes:
    try:
        return array("I", map(len, column)).tobytes()  # type: ignore[arg-type]
    except TypeError:  # a None in it, which is rare: the slow way only then
        return array("I", [NULL_LENGTH if cell is None else len(cell) for cell in column]).tobytes()


def _joined(column: Sequence[bytes | None]) -> bytes:
    try:
        return b"".join(column)  # type: ignore[arg-type]
    except TypeError:
        return b"".join([cell for cell in column if cell is not None])


def _time_column(times: Sequence[int] | None, base_ms: int, count: int, wide: bool) -> bytes:
    if times is None or base_ms == times[0] == times[-1] and len(set(times)) == 1:
        return bytes((8 if wide else 4) * count)
    return array("q" if wide else "I", [time - base_ms for time in times]).tobytes()


def _compress(raw: bytes, codec: Compression) -> bytes:
    if codec is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=3).compress(raw)
    return bytes(lz4.frame.compress(raw))


def _decompress(stored: bytes, codec: Compression, raw_bytes: int) -> bytes:
    """Decompress, never taking much more than `raw_bytes`, which the header check has bounded."""
    try:
        if codec is Compression.ZSTD:
            raw = zstandard.ZstdDecompressor().stream_reader(stored).read(raw_bytes + 1)
        else:
            raw = lz4.frame.LZ4FrameDecompressor().decompress(stored, max_length=raw_bytes + 1)
    except (RuntimeError, zstandard.ZstdError, EOFError) as error:
        raise CorruptBatch(f"body does not decompress as {codec.name.lower()}: {error}") from None
    if len(raw) != raw_bytes:
        raise CorruptBatch(f"body decompresses to {len(raw)} bytes, header says {raw_bytes}")
    return bytes(raw)


class ColumnPlaces(NamedTuple):
    """Where each column begins in a raw body (byte positions); -1: the column is absent."""

    offset_deltas: int
    timestamp_deltas: int
    key_lengths: int
    value_lengths: int
    header_lengths: int
    blobs: int
    """First byte behind the fixed columns: key bytes, then value bytes, then header bytes."""


def column_places(header: BatchHeader) -> ColumnPlaces:
    """Byte positions of the columns in the raw body, from the header alone."""
    attributes, size = header.attributes, 4 * header.record_count
    at = size if attributes & SPARSE else 0
    times = at
    at += 2 * size if attributes & WIDE_TIMESTAMPS else size
    keys = at if attributes & HAS_KEYS else -1
    at += size if attributes & HAS_KEYS else 0
    values = at
    at += size
    heads = at if attributes & HAS_HEADERS else -1
    at += size if attributes & HAS_HEADERS else 0
    return ColumnPlaces(0 if attributes & SPARSE else -1, times, keys, values, heads, at)


class RecordBatch:
    """A batch opened for reading: CRC checked, body decompressed, columns cut on demand.

    `data` may hold more behind the batch. Raises CorruptBatch; the column methods do too when
    lengths do not add up.
    """

    __slots__ = ("_blob_ends", "_lengths", "_places", "body", "header")

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self.header = header = read_header(data, position)
        body = bytes(data[position + HEADER_BYTES : position + header.total_bytes])
        check_body(header, body)
        if header.compression is not Compression.NONE:
            body = _decompress(body, header.compression, header.raw_body_bytes)
        self.body = body
        self._places = places = column_places(header)
        if places.blobs > len(body):
            raise CorruptBatch(f"columns need {places.blobs} bytes, body has {len(body)}")
        self._lengths = [
            self._u32(place) if place >= 0 else None
            for place in (places.key_lengths, places.value_lengths, places.header_lengths)
        ]
        self._blob_ends = self._check_lengths()

    def __len__(self) -> int:
        return self.header.record_count

    def _u32(self, place: int) -> array[int]:
        column = array("I")
        column.frombytes(self.body[place : place + 4 * self.header.record_count])
        return column

    def _check_lengths(self) -> list[int]:
        """Where key, value and header bytes end; they must fill the body exactly."""
        ends, at = [], self._places.blobs
        for lengths in self._lengths:
            if lengths is not None:
                at += sum(lengths) - NULL_LENGTH * lengths.count(NULL_LENGTH)
            ends.append(at)
        if at != len(self.body):
            raise CorruptBatch(f"columns end at byte {at}, body at byte {len(self.body)}")
        return ends

    def _cells(self, column: int) -> list[bytes | None]:
        lengths = self._lengths[column]
        if lengths is None:
            return [None] * len(self)
        start = self._places.blobs if column == 0 else self._blob_ends[column - 1]
        body = self.body
        if NULL_LENGTH not in lengths:
            ends = accumulate(lengths, initial=start)
            return [body[begin:end] for begin, end in pairwise(ends)]
        cells: list[bytes | None] = []
        for length in lengths:
            cells.append(None if length == NULL_LENGTH else body[start : start + length])
            start += 0 if length == NULL_LENGTH else length
        return cells

    def keys(self) -> list[bytes | None]:
        return self._cells(0)

    def values(self) -> list[bytes | None]:
        return self._cells(1)

    def encoded_headers(self) -> list[bytes]:
        """Each record's headers, still encoded; `b""` for none."""
        return [cell or b"" for cell in self._cells(2)]

    def timestamps_ms(self) -> list[int]:
        wide = bool(self.header.attributes & WIDE_TIMESTAMPS)
        deltas = array("q" if wide else "I")
        place, base = self._places.timestamp_deltas, self.header.base_timestamp_ms
        deltas.frombytes(self.body[place : place + deltas.itemsize * len(self)])
        return [base + delta for delta in deltas]

    def offsets(self) -> Sequence[int]:
        base = self.header.base_offset
        if self._places.offset_deltas < 0:
            return range(base, base + len(self))
        return [base + delta for delta in self._u32(self._places.offset_deltas)]

    def records(self) -> list[Record]:
        """All records, decoded. The slow road: prefer columns."""
        rows = zip(
            self.offsets(), self.timestamps_ms(), self.keys(), self.values(),
            self.encoded_headers(), strict=True,
        )  # fmt: skip
        return [
            Record(Offset(offset), time, key, value, decode_headers(head))
            for offset, time, key, value, head in rows
        ]
