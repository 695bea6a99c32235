"""Record batch: what a reader does with damage and rubbish.

The goal: whatever bytes arrive, the reader either decodes them or raises CorruptBatch, and takes no
more memory than the header check allows.
"""

from __future__ import annotations

import re
import struct
import tracemalloc

import google_crc32c
import lz4.frame
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.api.records import batch as rb
from lakemq.broker_core.api.types import Columns, Compression
from tests.support.record_batches import codecs, column_sets
from tests.support.seeds import examples

HEADER = struct.Struct("<4sIBBHIIIqiHHqiIqqII")
I64_MAX = 2**63 - 1


def read_everything(data: bytes) -> None:
    """Use every road by which a reader takes a batch apart."""
    for position, header in rb.split(data):
        rb.column_places(header)
        batch = rb.RecordBatch(data, position)
        batch.keys(), batch.values(), batch.encoded_headers()
        batch.timestamps_ms(), list(batch.offsets()), batch.records()


def with_crc(header: bytes) -> bytes:
    """The 80 header bytes with their CRC made right, whatever else they say."""
    return header[:4] + google_crc32c.value(header[8:80]).to_bytes(4, "little") + header[8:80]


def altered(data: bytes, **fields: int) -> bytes:
    """`data` with other values in header fields, under right CRCs."""
    header = rb.read_header(data)._replace(**fields)
    body = data[rb.HEADER_BYTES :]
    return rb.pack_header(header._replace(body_crc32c=google_crc32c.value(body))) + body


SIMPLE = rb.encode(Columns([b"one", None, b"three"], [b"k", b"k", None], None, [5, 6, 7]))


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("codec", list(Compression))
def test_every_flipped_bit_is_detected(codec: Compression) -> None:
    good = rb.encode(
        Columns([b"one", None, b"three"], [b"k", b"k", None], [b"", b"", b""], [5, 6, 7]),
        compression=codec,
    )
    read_everything(good)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            read_everything(bytes(bad))


@pytest.mark.parametrize("codec", list(Compression))
def test_every_truncation_is_detected(codec: Compression) -> None:
    good = rb.encode(Columns([b"one", None], [b"k", b"k"], None, [5, 6]), compression=codec)
    for size in range(len(good)):
        cut = "header cut short" if size < rb.HEADER_BYTES else "bytes, header says"
        with pytest.raises(CorruptBatch, match=cut):
            rb.RecordBatch(good[:size])
        if size:
            with pytest.raises(CorruptBatch):
                list(rb.split(good + good[:size]))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"attributes": 0x0200}, "unknown attributes 0x0200"),
        ({"attributes": 0x0023}, "unknown attributes 0x0023"),
        ({"body_bytes": rb.BODY_MAX_BYTES + 1}, "is the most"),
        ({"attributes": 0x21, "raw_body_bytes": rb.BODY_MAX_BYTES + 1}, "is the most"),
        ({"raw_body_bytes": 500}, "two sizes"),
        ({"record_count": 0}, "0 records"),
        ({"record_count": 2**32 - 1}, "4294967295 records"),
        ({"record_count": 4, "last_offset_delta": 3}, "4 records in"),
        ({"last_offset_delta": 1}, "last offset delta 1, 3 records"),
        ({"last_offset_delta": 3}, "last offset delta 3, 3 records"),
        ({"base_offset": -1}, "offsets -1 to 1"),
        ({"base_offset": I64_MAX - 1}, "offsets"),
        ({"max_timestamp_ms": 4}, "timestamps 5 to 4 ms"),
        ({"body_bytes": 1, "raw_body_bytes": 1}, "3 records in 1 bytes"),
    ],
)
def test_header_that_makes_no_sense_is_refused(fields: dict[str, int], complaint: str) -> None:
    with pytest.raises(CorruptBatch, match=complaint):
        rb.read_header(altered(SIMPLE, **fields))


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [(0, b"LMQA", "magic is b'LMQA'"), (8, b"\x02", "version 2; this build reads version 1")],
)
def test_other_magic_and_version_are_named(place: int, value: bytes, complaint: str) -> None:
    header = with_crc(SIMPLE[:place] + value + SIMPLE[place + len(value) : rb.HEADER_BYTES])
    with pytest.raises(CorruptBatch, match=re.escape(complaint)):
        rb.read_header(header)


@pytest.mark.parametrize("place", [9, 38, 39, 76, 77, 78, 79])
def test_reserved_bytes_are_ignored(place: int) -> None:
    header = bytearray(SIMPLE[: rb.HEADER_BYTES])
    assert header[place] == 0
    header[place] = 0xFF
    batch = rb.RecordBatch(with_crc(bytes(header)) + SIMPLE[rb.HEADER_BYTES :])

    assert batch.values() == [b"one", None, b"three"]


def test_sparse_offsets_must_ascend_to_the_last() -> None:
    good = rb.encode(Columns([b"", b"", b""]), offset_deltas=[2, 5, 9])
    for deltas in [(2, 9, 5), (5, 5, 9), (2, 5, 8), (9, 9, 9)]:
        body = struct.pack("<3I", *deltas) + good[rb.HEADER_BYTES + 12 :]
        with pytest.raises(CorruptBatch, match="do not ascend to 9"):
            rb.RecordBatch(altered(good[: rb.HEADER_BYTES] + body))


def test_lengths_must_fill_the_body() -> None:
    good = rb.encode(Columns([b"abc", b"de"]))
    for lengths in [(3, 1), (3, 3), (2**32 - 1, 2), (2**32 - 2, 7)]:
        fields = good[: rb.HEADER_BYTES + 8] + struct.pack("<2I", *lengths)
        with pytest.raises(CorruptBatch, match="columns end at byte"):
            rb.RecordBatch(altered(fields + b"abcde"))


# ---------------------------------------------------------------- rubbish


def only_corrupt_batch(data: bytes) -> None:
    try:
        read_everything(data)
    except CorruptBatch as error:
        assert str(error)


@given(st.binary(max_size=400))
@example(b"LMQB")
def test_arbitrary_bytes_raise_nothing_but_corrupt_batch(data: bytes) -> None:
    only_corrupt_batch(data)
    only_corrupt_batch(with_crc(data.ljust(80, b"\0")) + data[80:])


field_values = st.sampled_from([-(2**63), -1, 0, 1, 2, 7, 80, 2**31 - 1, 2**32 - 1, 2**63 - 1])


@given(
    st.lists(st.tuples(st.integers(2, 18), field_values), max_size=4),
    column_sets(),
    codecs,
    st.booleans(),
)
@settings(max_examples=examples(300))
def test_nonsense_fields_under_a_right_crc_raise_nothing_but_corrupt_batch(
    changes: list[tuple[int, int]], columns: Columns, codec: Compression, sparse: bool
) -> None:
    deltas = range(0, 2 * len(columns.values), 2) if sparse else None
    good = rb.encode(columns, compression=codec, offset_deltas=deltas)
    fields = list(HEADER.unpack_from(good))
    bits = [0, 32, 8, 8, 16, 32, 32, 32, 64, 32, 16, 16, 64, 32, 32, 64, 64, 32, 32]
    signed = {8, 9, 12, 13, 15, 16}
    for place, value in changes:
        value %= 1 << bits[place]
        fields[place] = value - (1 << bits[place]) * (
            place in signed and value >= 1 << bits[place] - 1
        )
    only_corrupt_batch(with_crc(HEADER.pack(*fields)) + good[rb.HEADER_BYTES :])


@given(column_sets(), codecs, st.booleans(), st.data())
@settings(max_examples=examples(300))
def test_nonsense_bodies_under_right_crcs_raise_nothing_but_corrupt_batch(
    columns: Columns, codec: Compression, sparse: bool, data: st.DataObject
) -> None:
    deltas = range(0, 2 * len(columns.values), 2) if sparse else None
    good = rb.encode(columns, compression=codec, offset_deltas=deltas)
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(rb.HEADER_BYTES, len(bad) - 1))
        bad[place] = data.draw(st.integers(0, 255))
    only_corrupt_batch(altered(bytes(bad)))


# ---------------------------------------------------------------- memory


BOMB_BYTES = 64 * 1024 * 1024
BOMBS = {
    "lz4": (Compression.LZ4, lz4.frame.compress(bytes(BOMB_BYTES))),
    "zstd": (Compression.ZSTD, zstandard.ZstdCompressor().compress(bytes(BOMB_BYTES))),
    "zstd without its size": (
        Compression.ZSTD,
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(BOMB_BYTES)),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_body_that_swells_beyond_its_header_takes_no_memory(name: str) -> None:
    """A frame of 64 MiB zeros, whose header says 4 KiB, may cost kilobytes."""
    codec, frame = BOMBS[name]
    small = rb.read_header(SIMPLE)
    header = small._replace(
        attributes=codec,
        record_count=1,
        last_offset_delta=0,
        body_bytes=len(frame),
        raw_body_bytes=4096,
        body_crc32c=google_crc32c.value(frame),
    )
    data = rb.pack_header(header) + frame
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            rb.RecordBatch(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 3 * len(frame) + 64 * 1024


@pytest.mark.parametrize(
    ("codec", "frame"),
    [
        (Compression.LZ4, lz4.frame.compress(bytes(100)) + b"x"),
        (Compression.LZ4, lz4.frame.compress(bytes(100))[:-4]),
        (Compression.LZ4, lz4.frame.compress(bytes(99))),
        (Compression.LZ4, lz4.frame.compress(bytes(101))),
        (Compression.ZSTD, zstandard.compress(bytes(100)) + b"x"),
        (Compression.ZSTD, zstandard.compress(bytes(100))[:-1]),
        (Compression.ZSTD, zstandard.compress(bytes(101))),
        (Compression.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(bytes(99))),
    ],
)
def test_compressed_body_is_one_frame_of_the_stated_size(codec: Compression, frame: bytes) -> None:
    header = rb.read_header(SIMPLE)._replace(
        attributes=codec,
        body_bytes=len(frame),
        raw_body_bytes=100,
        record_count=1,
        last_offset_delta=0,
        body_crc32c=google_crc32c.value(frame),
    )
    with pytest.raises(CorruptBatch, match="decompress"):
        rb.RecordBatch(rb.pack_header(header) + frame)


def test_zstd_body_may_leave_out_its_content_size() -> None:
    raw = rb.encode(Columns([b"a" * 50, b"b" * 50]))[rb.HEADER_BYTES :]
    body = zstandard.ZstdCompressor(write_content_size=False).compress(raw)
    header = rb.read_header(rb.encode(Columns([b"a" * 50, b"b" * 50])))._replace(
        attributes=Compression.ZSTD, body_bytes=len(body), body_crc32c=google_crc32c.value(body)
    )
    batch = rb.RecordBatch(rb.pack_header(header) + body)

    assert batch.values() == [b"a" * 50, b"b" * 50]
