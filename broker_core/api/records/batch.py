"""Codec of record batches, the unit of append, CRC and compression: bytes <-> columns.

A batch is a fixed 80-byte little-endian header and a body of columns, described byte by byte in
`docs/formats/record-batch.md`. Two CRC-32C sums guard it: the producer's over the body, and one
over the header, which the broker recomputes when it stamps the base offset, so stamping never
touches the body.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from operator import lt
from typing import Final, NamedTuple

import google_crc32c
import lz4.frame
import zstandard

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records.headers import NULL_LENGTH, decode_headers
from lakemq.broker_core.api.types import Columns, Compression, Offset, Record

MAGIC: Final = b"LMQB"
VERSION: Final = 1
HEADER_BYTES: Final = 80
BODY_MAX_BYTES: Final = 256 * 1024 * 1024
"""No body, stored or decompressed, is larger (bytes); readers refuse before taking memory."""
RECORDS_MAX: Final = 250_000
"""Records of a batch that a broker takes from a client: what readers open in one go."""
_U32_MAX: Final = 2**32 - 1
_I64_MAX: Final = 2**63 - 1

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
_FIXED_MASK: Final = WIDE_TIMESTAMPS | HAS_KEYS | HAS_HEADERS | SPARSE
_FEW: Final = 256
"""Below this count Python adds numbers up faster than numpy."""
_NULL_BYTES: Final = NULL_LENGTH.to_bytes(4, "little")


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
        """Size of the batch, header included."""
        return HEADER_BYTES + self.body_bytes

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> Compression:
        """Codec of the body."""
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
    # Magic and CRC stay out of the sum; it covers all that follows them, the body's CRC included.
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
    attributes, count, raw_bytes = header.attributes, header.record_count, header.raw_body_bytes
    codec = attributes & _CODEC_MASK
    if attributes & ~_KNOWN_ATTRIBUTES or codec > Compression.ZSTD:
        raise CorruptBatch(f"unknown attributes {attributes:#06x}")
    if raw_bytes > BODY_MAX_BYTES or header.body_bytes > BODY_MAX_BYTES:
        raise CorruptBatch(f"body of {raw_bytes} bytes; {BODY_MAX_BYTES} is the most")
    # Readers take either size, so two that differ would be read in two ways.
    if codec == Compression.NONE and header.body_bytes != raw_bytes:
        raise CorruptBatch("uncompressed body with two sizes")
    if count < 1 or raw_bytes < count * _fixed_bytes(attributes):
        raise CorruptBatch(f"{count} records in {raw_bytes} bytes")
    gaps = header.last_offset_delta - (count - 1)
    if gaps < 0 or (gaps and not attributes & SPARSE):
        raise CorruptBatch(f"last offset delta {header.last_offset_delta}, {count} records")
    if header.base_offset < 0 or header.last_offset > _I64_MAX:
        raise CorruptBatch(f"offsets {header.base_offset} to {header.last_offset}")
    if header.max_timestamp_ms < header.base_timestamp_ms:
        raise CorruptBatch(f"timestamps {header.base_timestamp_ms} to {header.max_timestamp_ms} ms")


def _fixed_bytes(attributes: int) -> int:
    """Bytes that each record takes in the fixed columns: 4 for its timestamp delta, 4 for its
    value length, and 4 for each of wide timestamps, keys, headers and offset deltas."""
    return 8 + 4 * (attributes & _FIXED_MASK).bit_count()


def check_body(header: BatchHeader, body: bytes | memoryview) -> None:
    """CorruptBatch unless `body` is the stored body that the header's CRC was made over."""
    if len(body) != header.body_bytes:
        raise CorruptBatch(f"body of {len(body)} bytes, header says {header.body_bytes}")
    if _crc32c(body) != header.body_crc32c:
        raise CorruptBatch("body CRC-32C does not match")


def _crc32c(body: bytes | memoryview) -> int:
    if isinstance(body, bytes):
        return int(google_crc32c.value(body))
    import numpy as np  # here: a node is ready before it is needed

    # The library takes no memoryview; it does take an array over the same bytes.
    return int(google_crc32c.value(np.frombuffer(body, np.uint8)))


def split(data: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch in `data`, back to back. CorruptBatch on a cut tail."""
    position, end = 0, len(data)
    while position < end:
        header = read_header(data, position)
        if position + header.total_bytes > end:
            raise CorruptBatch(f"batch at byte {position} ends after byte {end}")
        yield position, header
        position += header.total_bytes


def stamp(
    data: bytes, header: BatchHeader, base_offset: int, leader_epoch: int
) -> tuple[BatchHeader, bytes]:
    """The batch with its place in the log: new header and header bytes + the body as it was."""
    # The header's CRC is made again, the body's is not: the producer's sum guards the records from
    # end to end.
    stamped = header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    return stamped, b"".join((pack_header(stamped), memoryview(data)[HEADER_BYTES:]))


def recompress(
    data: bytes, header: BatchHeader, compression: Compression
) -> tuple[BatchHeader, bytes]:
    """The batch with its body in another codec. CorruptBatch: the body doesn't decompress."""
    raw = bytes(raw_body(header, data[HEADER_BYTES:]))
    body = raw if compression is Compression.NONE else _compress(raw, compression)
    changed = header._replace(
        attributes=header.attributes & ~_CODEC_MASK | compression,
        body_bytes=len(body),
        body_crc32c=google_crc32c.value(body),
    )
    return changed, pack_header(changed) + body


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
    """The batch that `encode_with_header` makes."""
    return encode_with_header(
        columns,
        now_ms=now_ms,
        compression=compression,
        producer=producer,
        base_offset=base_offset,
        offset_deltas=offset_deltas,
        leader_epoch=leader_epoch,
        attributes=attributes,
    )[1]


def encode_with_header(
    columns: Columns,
    *,
    now_ms: int = 0,
    compression: Compression = Compression.NONE,
    producer: ProducerStamp = NOT_IDEMPOTENT,
    base_offset: int = 0,
    offset_deltas: Sequence[int] | None = None,
    leader_epoch: int = 0,
    attributes: int = 0,
) -> tuple[BatchHeader, bytes]:
    """Columns -> one record batch, and its header. `now_ms` stands in for absent timestamps.

    `offset_deltas` (ascending, u32) is for compaction alone, where offsets have gaps. Of
    `attributes` only APPEND_TIME and CONTROL count; the others follow from what is encoded.
    ValueError: columns of different lengths, or what no batch can hold.
    """
    values, keys, headers, times = columns
    count = _check_columns(columns, offset_deltas)
    base_ms, max_ms = (now_ms, now_ms) if times is None else _time_range(times)
    wide = _check_times(base_ms, max_ms)
    attributes = compression | attributes & (APPEND_TIME | CONTROL)
    attributes |= APPEND_TIME if times is None else 0
    attributes |= WIDE_TIMESTAMPS if wide else 0
    attributes |= HAS_KEYS if keys is not None else 0
    attributes |= HAS_HEADERS if headers is not None else 0
    attributes |= SPARSE if offset_deltas is not None else 0
    blobs = [column for column in (keys, values, headers) if column is not None]
    parts = [] if offset_deltas is None else [array("I", offset_deltas).tobytes()]
    parts.append(_time_column(times, base_ms, max_ms, count))
    parts += map(_lengths, blobs)
    parts += map(_joined, blobs)
    raw = b"".join(parts)
    body = raw if compression is Compression.NONE else _compress(raw, compression)
    if max(len(raw), len(body)) > BODY_MAX_BYTES:
        raise ValueError(f"batch body of {len(raw)} bytes; {BODY_MAX_BYTES} is the most")
    header = BatchHeader(
        attributes, len(body), google_crc32c.value(body), count, base_offset, leader_epoch,
        producer.epoch, producer.producer_id, producer.base_sequence, len(raw), base_ms, max_ms,
        count - 1 if offset_deltas is None else offset_deltas[-1],
    )  # fmt: skip
    return header, pack_header(header) + body


def _check_columns(columns: Columns, offset_deltas: Sequence[int] | None) -> int:
    """Number of records; ValueError when the columns do not make a batch."""
    count = len(columns.values)
    if not count:
        raise ValueError("a record batch holds at least one record")
    for column in columns[1:]:
        if column is not None and len(column) != count:
            name = columns._fields[columns.index(column)]
            raise ValueError(f"{name} has {len(column)} entries, values has {count}")
    if offset_deltas is not None:
        if len(offset_deltas) != count:
            raise ValueError(f"offset_deltas has {len(offset_deltas)} entries, values has {count}")
        if not _ascending(offset_deltas):
            raise ValueError("offset_deltas do not ascend")
    return count


def _ascending(deltas: Sequence[int]) -> bool:
    return all(map(lt, deltas, islice(deltas, 1, None)))


def _time_range(times: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest."""
    # One for all, as records that are sent together have it: counted in a tenth of the time.
    if type(times) is list and times[0] is times[-1] and times.count(times[0]) == len(times):
        return times[0], times[0]
    return min(times), max(times)


def _check_times(base_ms: int, max_ms: int) -> bool:
    """Whether the deltas need 64 bits; ValueError when a field of 64 bits is too small."""
    if base_ms < -_I64_MAX or max_ms > _I64_MAX or max_ms - base_ms > _I64_MAX:
        raise ValueError(f"timestamps {base_ms} to {max_ms} ms do not fit in 64 bits")
    return max_ms - base_ms > _U32_MAX


def _sum(lengths: array[int]) -> int:
    if len(lengths) < _FEW:
        return sum(lengths)
    import numpy as np

    return int(np.frombuffer(lengths, np.uint32).sum(dtype=np.uint64))


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


def _time_column(times: Sequence[int] | None, base_ms: int, max_ms: int, count: int) -> bytes:
    # All deltas are 0, which needs no array of Python integers.
    if times is None or base_ms == max_ms:
        return bytes(4 * count)
    wide = max_ms - base_ms > _U32_MAX
    return array("q" if wide else "I", [time - base_ms for time in times]).tobytes()


def _compress(raw: bytes, codec: Compression) -> bytes:
    if codec is Compression.ZSTD:
        return zstandard.ZstdCompressor(level=3).compress(raw)
    return bytes(lz4.frame.compress(raw))


def raw_body(header: BatchHeader, body: bytes | memoryview) -> bytes | memoryview:
    """The body decompressed, or as it is. CorruptBatch unless that makes `raw_body_bytes`."""
    if header.compression is Compression.NONE:
        return body
    return _decompress(body, header.compression, header.raw_body_bytes)


def _decompress(stored: bytes | memoryview, codec: Compression, raw_bytes: int) -> bytes:
    """Decompress exactly `raw_bytes`, which the header check has bounded, and take no more memory.

    The body is one frame of its codec, and nothing after it.
    """
    try:
        raw = (_decompress_zstd if codec is Compression.ZSTD else _decompress_lz4)(
            stored, raw_bytes
        )
    except (RuntimeError, ValueError, zstandard.ZstdError, EOFError) as error:
        raise CorruptBatch(f"body does not decompress as {codec.name.lower()}: {error}") from None
    if len(raw) != raw_bytes:
        raise CorruptBatch(f"body decompresses to {len(raw)} bytes, header says {raw_bytes}")
    return raw


def _decompress_zstd(stored: bytes | memoryview, raw_bytes: int) -> bytes:
    size = zstandard.frame_content_size(stored)  # -1: the frame does not say
    if size not in (-1, raw_bytes):
        raise ValueError(f"frame of {size} bytes, header says {raw_bytes}")
    # A size that the frame states is what zstandard allocates, so it was checked above; without
    # one it allocates `max_output_size`.
    return zstandard.ZstdDecompressor().decompress(
        stored, max_output_size=raw_bytes, allow_extra_data=False
    )


def _decompress_lz4(stored: bytes | memoryview, raw_bytes: int) -> bytes:
    frame = lz4.frame.LZ4FrameDecompressor()
    raw: bytes = frame.decompress(stored, max_length=raw_bytes)
    # Output that fills `raw_bytes` exactly leaves the frame's end mark unread.
    if not frame.eof:
        raw += frame.decompress(b"", max_length=1)
    if not frame.eof or frame.unused_data:
        raise ValueError("the frame does not end where the body ends")
    return raw


class ColumnPlaces(NamedTuple):
    """Where each column begins in a raw body (byte positions); -1: the column is absent."""

    offset_deltas: int
    timestamp_deltas: int
    key_lengths: int
    value_lengths: int
    header_lengths: int
    blobs: int
    """First byte after the fixed columns: key bytes, then value bytes, then header bytes."""


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

    `data` may hold more after the batch. Raises CorruptBatch. With `columns_later` the body is
    left where it lies in `data`, and lengths and offsets, which take long to look through, are
    checked when a column method is called: for callers that read `view` and check them themselves.
    """

    __slots__ = ("_blob_ends", "_lengths", "_places", "header", "view")

    def __init__(
        self, data: bytes | memoryview, position: int = 0, *, columns_later: bool = False
    ) -> None:
        self.header = header = read_header(data, position)
        begin, end = position + HEADER_BYTES, position + header.total_bytes
        body = memoryview(data)[begin:end] if columns_later else bytes(data[begin:end])
        check_body(header, body)
        self.view = raw_body(header, body)
        self._places = column_places(header)
        self._lengths: list[array[int] | None] = []
        self._blob_ends: list[int] = []
        if not columns_later:
            self._open_columns()

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        if not isinstance(self.view, bytes):
            # Copied only where columns are cut: slices of bytes are bytes, which cells must be.
            self.view = bytes(self.view)
        return self.view

    def __len__(self) -> int:
        return self.header.record_count

    def _open_columns(self) -> None:
        """Look through offsets and lengths, once."""
        if self._blob_ends:
            return
        places = self._places
        if places.offset_deltas >= 0:
            self._check_offsets()
        self._lengths = [
            self._u32(place) if place >= 0 else None
            for place in (places.key_lengths, places.value_lengths, places.header_lengths)
        ]
        self._blob_ends = self._check_lengths()

    def _u32(self, place: int) -> array[int]:
        column = array("I")
        column.frombytes(self.body[place : place + 4 * self.header.record_count])
        return column

    def _check_offsets(self) -> None:
        deltas = self._u32(self._places.offset_deltas)
        if deltas[-1] != self.header.last_offset_delta or not _ascending(deltas):
            raise CorruptBatch(f"offset deltas do not ascend to {self.header.last_offset_delta}")

    def _check_lengths(self) -> list[int]:
        """Where key, value and header bytes end; they must fill the body exactly."""
        ends, at = [], self._places.blobs
        for lengths in self._lengths:
            if lengths is not None:
                # Counting takes long, and is needed where the bytes of a null are there at all.
                nulls = lengths.count(NULL_LENGTH) if _NULL_BYTES in lengths.tobytes() else 0
                at += _sum(lengths) - NULL_LENGTH * nulls
            ends.append(at)
        if at != len(self.body):
            raise CorruptBatch(f"columns end at byte {at}, body at byte {len(self.body)}")
        return ends

    def _cells(self, column: int) -> list[bytes | None]:
        self._open_columns()
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
        """Keys of the records, in order; None: the record has none."""
        return self._cells(0)

    def values(self) -> list[bytes | None]:
        """Values of the records, in order; None: a tombstone."""
        return self._cells(1)

    def encoded_headers(self) -> list[bytes]:
        """Each record's headers, still encoded; `b""` for none."""
        return [cell or b"" for cell in self._cells(2)]

    def timestamps_ms(self) -> list[int]:
        """Timestamps of the records, in order."""
        wide = bool(self.header.attributes & WIDE_TIMESTAMPS)
        deltas = array("q" if wide else "I")
        place, base = self._places.timestamp_deltas, self.header.base_timestamp_ms
        deltas.frombytes(self.body[place : place + deltas.itemsize * len(self)])
        return [base + delta for delta in deltas]

    def offsets(self) -> Sequence[int]:
        """Offsets of the records, ascending."""
        self._open_columns()
        base = self.header.base_offset
        if self._places.offset_deltas < 0:
            return range(base, base + len(self))
        return [base + delta for delta in self._u32(self._places.offset_deltas)]

    def records(self) -> list[Record]:
        """All records, decoded. The slow road: prefer columns."""
        rows = zip(
            self.offsets(),
            self.timestamps_ms(),
            self.keys(),
            self.values(),
            self.encoded_headers(),
            strict=True,
        )
        return [
            Record(Offset(offset), time, key, value, decode_headers(head))
            for offset, time, key, value, head in rows
        ]
