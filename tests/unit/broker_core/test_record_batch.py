"""Record batch, format version 1: round trips, golden bytes, and what a reader does with rubbish.

The goal of the rubbish tests: whatever bytes arrive, the reader either decodes them or raises
CorruptBatch, and takes no more memory than the header check allows.
"""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path

import google_crc32c
import lz4.frame
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_core.api import record_batch as rb
from broker_core.api.errors import CorruptBatch
from broker_core.api.record_headers import encode_headers
from broker_core.api.types import Columns, Compression

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/data/record_batch"
DOCUMENT = ROOT / "docs/formats/record-batch.md"
HEADER = struct.Struct("<4sIBBHIIIqiHHqiIqqII")
I64_MAX = 2**63 - 1


# ---------------------------------------------------------------- strategies


cells = st.none() | st.binary(max_size=40)
header_lists = st.lists(
    st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=3
).map(tuple)
near_times = st.integers(1_700_000_000_000, 1_700_000_000_000 + 10**6)
any_times = st.integers(-(2**61), 2**61)
codecs = st.sampled_from(list(Compression))


@st.composite
def column_sets(draw: st.DrawFn, times: st.SearchStrategy[int] = any_times) -> Columns:
    count = draw(st.integers(1, 12))

    def column(entries: st.SearchStrategy) -> list:
        return draw(st.lists(entries, min_size=count, max_size=count))

    return Columns(
        values=column(cells),
        keys=column(cells) if draw(st.booleans()) else None,
        headers=column(header_lists.map(encode_headers)) if draw(st.booleans()) else None,
        timestamps_ms=column(draw(st.sampled_from([times, near_times])))
        if draw(st.booleans())
        else None,
    )


@st.composite
def sparse_deltas(draw: st.DrawFn, count: int) -> list[int]:
    deltas = st.integers(0, 2**32 - 1)
    return sorted(draw(st.sets(deltas, min_size=count, max_size=count)))


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


# ---------------------------------------------------------------- round trips


@given(column_sets(), codecs, st.integers(0, 2**62), st.data())
def test_what_is_encoded_is_decoded(
    columns: Columns, codec: Compression, base_offset: int, data: st.DataObject
) -> None:
    count = len(columns.values)
    deltas = data.draw(st.none() | sparse_deltas(count))
    encoded = rb.encode(
        columns,
        now_ms=99,
        compression=codec,
        base_offset=base_offset,
        offset_deltas=deltas,
        leader_epoch=7,
        producer=rb.ProducerStamp(12, 3, 45),
    )
    batch = rb.RecordBatch(encoded)
    header = batch.header

    assert len(batch) == count
    assert batch.values() == columns.values
    assert batch.keys() == (columns.keys or [None] * count)
    assert batch.encoded_headers() == (columns.headers or [b""] * count)
    times = [99] * count if columns.timestamps_ms is None else columns.timestamps_ms
    assert batch.timestamps_ms() == times
    offsets = [base_offset + delta for delta in deltas or range(count)]
    assert list(batch.offsets()) == offsets
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (min(times), max(times))
    assert (header.base_offset, header.last_offset) == (base_offset, offsets[-1])
    assert (header.leader_epoch, header.compression) == (7, codec)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (12, 3, 45)
    assert bool(header.attributes & rb.APPEND_TIME) == (columns.timestamps_ms is None)
    assert bool(header.attributes & rb.SPARSE) == (deltas is not None)
    assert header.total_bytes == len(encoded)
    assert header == rb.read_header(rb.pack_header(header))


@given(st.lists(column_sets(), min_size=1, max_size=4), codecs)
def test_batches_lie_back_to_back(sets: list[Columns], codec: Compression) -> None:
    parts = [rb.encode(columns, compression=codec) for columns in sets]
    data = b"".join(parts)
    places = list(rb.split(data))

    assert [position for position, _ in places] == [
        sum(map(len, parts[:index])) for index in range(len(parts))
    ]
    for (position, header), columns in zip(places, sets, strict=True):
        assert header.record_count == len(columns.values)
        assert rb.RecordBatch(data, position).values() == columns.values
        assert rb.RecordBatch(memoryview(data), position).values() == columns.values


@given(column_sets(), codecs, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_stamping_changes_the_place_and_nothing_else(
    columns: Columns, codec: Compression, base_offset: int, epoch: int
) -> None:
    encoded = rb.encode(columns, compression=codec)
    header, stamped = rb.stamp(encoded, rb.read_header(encoded), base_offset, epoch)

    assert rb.read_header(stamped) == header
    assert header == rb.read_header(encoded)._replace(base_offset=base_offset, leader_epoch=epoch)
    assert stamped[rb.HEADER_BYTES :] == encoded[rb.HEADER_BYTES :]
    assert rb.RecordBatch(stamped).values() == columns.values


def test_records_join_the_columns() -> None:
    head = encode_headers((("unit", b"mg"),))
    columns = Columns([b"a", None], [None, b"k"], [head, b""], [10, 11])
    first, second = rb.RecordBatch(rb.encode(columns, base_offset=40)).records()

    assert first == (40, 10, None, b"a", (("unit", b"mg"),))
    assert second == (41, 11, b"k", None, ())


@pytest.mark.parametrize(
    ("times", "wide"),
    [
        ([0, 2**32 - 1], False),
        ([2**32 - 1, 0], False),
        ([0, 2**32], True),
        ([-(2**61), 2**62], True),
        ([5, 5, 5], False),
        ([-3, -3], False),
        ([5, 6, 5], False),
        ([I64_MAX], False),
    ],
)
def test_timestamps_are_wide_only_when_they_must_be(times: list[int], wide: bool) -> None:
    batch = rb.RecordBatch(rb.encode(Columns([b""] * len(times), timestamps_ms=times)))

    assert batch.timestamps_ms() == times
    assert bool(batch.header.attributes & rb.WIDE_TIMESTAMPS) == wide


def test_fixed_columns_take_what_the_header_check_counts() -> None:
    for attributes in range(512):
        header = rb.read_header(SIMPLE)._replace(attributes=attributes, record_count=11)
        assert rb.column_places(header).blobs == 11 * rb._fixed_bytes(attributes)


# ---------------------------------------------------------------- what the encoder refuses


@pytest.mark.parametrize(
    ("columns", "deltas", "complaint"),
    [
        (Columns([]), None, "at least one record"),
        (Columns([b""], [b"", b""]), None, "keys has 2 entries, values has 1"),
        (Columns([b""], None, [b"", b""]), None, "headers has 2 entries"),
        (Columns([b""], None, None, []), None, "timestamps_ms has 0 entries"),
        (Columns([b""]), [0, 1], "offset_deltas has 2 entries"),
        (Columns([b"", b""]), [3, 3], "do not ascend"),
        (Columns([b""], timestamps_ms=[2**63]), None, "do not fit in 64 bits"),
        (Columns([b"", b""], timestamps_ms=[-(2**62), 2**62 + 1]), None, "do not fit"),
    ],
)
def test_encoder_refuses_what_no_batch_holds(
    columns: Columns, deltas: list[int] | None, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        rb.encode(columns, offset_deltas=deltas)


def test_encoder_refuses_a_body_that_no_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rb, "BODY_BYTES_MAX", 1000)
    rb.encode(Columns([b"x" * 992]))
    with pytest.raises(ValueError, match="batch body of 1001 bytes; 1000 is the most"):
        rb.encode(Columns([b"x" * 993]))


def test_attributes_of_another_batch_do_not_leak_into_a_new_one() -> None:
    old = rb.read_header(
        rb.encode(
            Columns([b"a"], [b"k"], [b""]), compression=Compression.ZSTD, attributes=rb.CONTROL
        )
    )
    new = rb.read_header(rb.encode(Columns([b"a"], None, None, [1]), attributes=old.attributes))

    assert new.attributes == rb.APPEND_TIME | rb.CONTROL


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
        ({"body_bytes": rb.BODY_BYTES_MAX + 1}, "is the most"),
        ({"attributes": 0x21, "raw_body_bytes": rb.BODY_BYTES_MAX + 1}, "is the most"),
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
    st.lists(st.tuples(st.integers(2, 18), field_values), max_size=4), column_sets(), codecs,
    st.booleans(),
)  # fmt: skip
@settings(max_examples=300)
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
@settings(max_examples=300)
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
        attributes=codec, body_bytes=len(frame), raw_body_bytes=100, record_count=1,
        last_offset_delta=0, body_crc32c=google_crc32c.value(frame),
    )  # fmt: skip
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


# ---------------------------------------------------------------- golden bytes


HEADS = [encode_headers((("unit", b"mg/m3"), ("empty", None))), b"", encode_headers((("", b""),))]
TEN = [b'{"co_gt":%d}' % n for n in range(10)]
GOLDEN_CASES: dict[str, tuple[Columns, dict]] = {
    "v1-values": (Columns([b"a", b"", b"ccc"]), {"now_ms": 1_700_000_000_000}),
    "v1-all-columns": (
        Columns(
            [b"first", None, b""],
            [b"air/co_gt", b"", None],
            HEADS,
            [1_700_000_000_000, 1_700_000_000_250, 1_699_999_999_000],
        ),
        {
            "base_offset": 81_000,
            "leader_epoch": 4,
            "producer": rb.ProducerStamp(77, 2, 1_000),
        },
    ),
    "v1-wide-timestamps": (Columns([b"x", b"y"], timestamps_ms=[-(2**40), 2**41]), {}),
    "v1-sparse": (
        Columns([b"0", b"7", b"300"], timestamps_ms=[1, 2, 3]),
        {"base_offset": 50, "offset_deltas": [0, 7, 300]},
    ),
    "v1-control": (Columns([b"\0\1"], timestamps_ms=[9]), {"attributes": rb.CONTROL}),
    "v1-lz4": (
        Columns(TEN, timestamps_ms=list(range(10))),
        {"compression": Compression.LZ4, "base_offset": 5},
    ),
    "v1-zstd": (
        Columns(TEN, timestamps_ms=list(range(10))),
        {"compression": Compression.ZSTD, "base_offset": 5},
    ),
}


def from_hex(text: str) -> bytes:
    """Bytes of a golden file: hex digits, white space between them, `#` begins a comment."""
    return bytes.fromhex(" ".join(line.partition("#")[0] for line in text.splitlines()))


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden_batches_decode_for_ever(name: str) -> None:
    columns, options = GOLDEN_CASES[name]
    batch = rb.RecordBatch(from_hex((GOLDEN / f"{name}.hex").read_text()))
    count, header = len(columns.values), batch.header
    base = options.get("base_offset", 0)
    producer = options.get("producer", rb.NOT_IDEMPOTENT)

    assert batch.values() == columns.values
    assert batch.keys() == (columns.keys or [None] * count)
    assert batch.encoded_headers() == (columns.headers or [b""] * count)
    assert batch.timestamps_ms() == (columns.timestamps_ms or [options.get("now_ms")] * count)
    assert list(batch.offsets()) == [
        base + delta for delta in options.get("offset_deltas", range(count))
    ]
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert header.leader_epoch == options.get("leader_epoch", 0)
    assert header.compression == options.get("compression", Compression.NONE)
    assert header.attributes & rb.CONTROL == options.get("attributes", 0)


@pytest.mark.parametrize(
    "name", [name for name, (_, options) in GOLDEN_CASES.items() if "compression" not in options]
)
def test_uncompressed_golden_batches_encode_to_the_same_bytes(name: str) -> None:
    columns, options = GOLDEN_CASES[name]

    assert rb.encode(columns, **options) == from_hex((GOLDEN / f"{name}.hex").read_text())


def test_every_golden_file_has_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(GOLDEN_CASES)


# ---------------------------------------------------------------- the document


def test_worked_example_of_the_document_is_what_the_code_writes() -> None:
    """The table under "A worked example" lists the bytes of one batch, place by place."""
    section = DOCUMENT.read_text().partition("## A worked example")[2]
    rows = re.findall(r"^\| (\d+) \| `([0-9a-f ]+)` \|", section, flags=re.MULTILINE)
    listed = b""
    for place, cells in rows:
        assert int(place) == len(listed), f"row at {place} follows {len(listed)} bytes"
        listed += bytes.fromhex(cells)

    columns = Columns(
        values=[b'{"value":2.6}', None],
        keys=[b"air/co_gt", b"air/t"],
        headers=[encode_headers((("qos", b"1"),)), b""],
        timestamps_ms=[1_700_000_000_000, 1_700_000_000_040],
    )
    assert listed == rb.encode(columns, base_offset=7, leader_epoch=1)


def test_document_lists_every_header_field_at_its_place() -> None:
    section = DOCUMENT.read_text().partition("## Header")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \| `?(\w+)`? \|", section, flags=re.MULTILINE)
    sizes = {"4s": 4, "I": 4, "B": 1, "H": 2, "q": 8, "i": 4}
    codes = re.findall(r"4s|[IBHqi]", HEADER.format)
    kinds = {"4s": "bytes", "I": "u32", "B": "u8", "H": "u16", "q": "i64", "i": "i32"}
    place, expected = 0, []
    for code in codes:
        expected.append((str(place), str(sizes[code]), kinds[code]))
        place += sizes[code]

    assert place == rb.HEADER_BYTES
    assert [row[:3] for row in rows] == expected
    named = {row[3] for row in rows} - {"magic", "version", "reserved", "header_crc32c"}
    assert named == set(rb.BatchHeader._fields)
