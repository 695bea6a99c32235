"""Record batch, format version 1: round trips, golden bytes, and the document. What a reader does
with damage and rubbish is tested in `test_record_batch_damage.py`.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.records import batch as rb
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Compression
from tests.support.record_batches import codecs, column_sets, sparse_deltas

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests/data/record_batch"
DOCUMENT = ROOT / "docs/formats/record-batch.md"
HEADER = struct.Struct("<4sIBBHIIIqiHHqiIqqII")
I64_MAX = 2**63 - 1
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


def test_bytes_and_integers_of_any_kind_are_encoded() -> None:
    """Callers of the SDK and plugins hand them in; so they must be taken where this is compiled."""
    kinds: list[Any] = [bytearray(b"one"), memoryview(b"two"), None, b"three"]
    times: Any = np.arange(4) + 5
    headers = encode_headers([("unit", bytearray(b"C"))])
    columns = Columns(kinds, kinds, [bytearray(headers)] * 4, times)  # type: ignore[list-item]
    batch = rb.RecordBatch(rb.encode(columns, now_ms=np.int64(9)))  # type: ignore[arg-type]
    assert batch.values() == batch.keys() == [b"one", b"two", None, b"three"]
    assert batch.encoded_headers() == [headers] * 4
    assert list(batch.timestamps_ms()) == [5, 6, 7, 8]


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
    monkeypatch.setattr(rb, "BODY_MAX_BYTES", 1000)
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
