"""Record batches <-> Arrow."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.errors import CorruptBatch, InvalidRequest
from lakemq.broker_core.api.records.batch import RecordBatch, encode
from lakemq.broker_core.api.records.headers import encode_headers
from lakemq.broker_core.api.types import Columns, Compression
from lakemq.plugins.native.sdk.arrow import COLUMNS, arrow_schema, from_arrow, to_arrow
from tests.unit.broker_core.records import test_record_batch_later as later

pa = pytest.importorskip("pyarrow", reason="needs lakemq[spark]")

CELLS = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), CELLS), max_size=3).map(tuple)
ROWS = st.lists(
    st.tuples(CELLS, CELLS, HEADERS, st.integers(-(2**40), 2**42)), min_size=1, max_size=30
)


@given(ROWS, st.sampled_from(Compression), st.integers(0, 2**40), st.data())
def test_arrow_holds_what_records_hold(rows, compression, base_offset, data):
    columns = Columns(
        values=[row[0] for row in rows],
        keys=[row[1] for row in rows],
        headers=[encode_headers(row[2]) for row in rows],
        timestamps_ms=[row[3] for row in rows],
    )
    deltas = sorted({0} | data.draw(st.sets(st.integers(1, 2**31), max_size=len(rows) - 1)))
    sparse = deltas if len(deltas) == len(rows) else None
    batch = RecordBatch(
        encode(columns, compression=compression, base_offset=base_offset, offset_deltas=sparse)
    )

    arrow = to_arrow(batch, topic="t", partition=3)

    arrow.validate(full=True)
    assert arrow.schema == arrow_schema()
    assert arrow.column("topic").to_pylist() == ["t"] * len(rows)
    assert arrow.column("partition").to_pylist() == [3] * len(rows)
    assert arrow.column("timestamp").cast(pa.int64()).to_pylist() == [row[3] * 1000 for row in rows]
    records = batch.records()
    assert arrow.column("offset").to_pylist() == [record.offset for record in records]
    assert arrow.column("key").to_pylist() == [record.key for record in records]
    assert arrow.column("value").to_pylist() == [record.value for record in records]
    assert [
        tuple((header["key"], header["value"]) for header in cell)
        for cell in arrow.column("headers").to_pylist()
    ] == [record.headers for record in records]
    assert from_arrow(arrow) == columns


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(90, 200), st.integers(90, 200))
def test_rows_are_trimmed_to_the_range_of_offsets(gaps, start, end):
    offsets = [100]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    batch = RecordBatch(
        encode(
            Columns([b"%d" % offset for offset in offsets], headers=[b""] * len(offsets)),
            base_offset=100,
            offset_deltas=[offset - 100 for offset in offsets],
        )
    )

    arrow = to_arrow(batch, start=start, end=end, columns=("value", "offset", "headers"))

    arrow.validate(full=True)
    expected = [offset for offset in offsets if start <= offset < end]
    assert arrow.column("offset").to_pylist() == expected
    assert arrow.column("value").to_pylist() == [b"%d" % offset for offset in expected]


def test_keys_and_values_are_not_copied():
    batch = RecordBatch(encode(Columns([b"value"] * 10, [b"key"] * 10)))
    body = pa.py_buffer(batch.body)

    arrow = to_arrow(batch, start=2, end=8)

    for column in ("key", "value"):
        blob = arrow.column(column).buffers()[2]
        assert body.address <= blob.address < body.address + body.size


def test_absent_keys_are_null_and_absent_headers_empty():
    arrow = to_arrow(RecordBatch(encode(Columns([b"a", None]), now_ms=1_000)))

    arrow.validate(full=True)
    assert arrow.column("key").to_pylist() == [None, None]
    assert arrow.column("headers").to_pylist() == [[], []]
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    assert arrow.column("timestamp").to_pylist() == [moment, moment]


def test_columns_are_chosen_and_ordered():
    batch = RecordBatch(encode(Columns([b"a"])))
    assert to_arrow(batch, columns=("value", "partition")).schema.names == ["value", "partition"]
    assert to_arrow(batch).schema.names == list(COLUMNS)


def test_strings_and_slices_are_taken_from_arrow():
    table = pa.record_batch(
        {"value": ["a", "bc", "", "d"], "key": pa.array(["k", None, "l", "m"], pa.large_string())}
    )
    assert from_arrow(table.slice(1)) == Columns([b"bc", b"", b"d"], [None, b"l", b"m"])


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"key": [b"a"]}, "no column `value`"),
        ({"value": [[1]]}, "column `value` is list<item: int64>"),
        ({"value": [b"a"], "timestamp": [1]}, "column `timestamp` is int64"),
        (
            {"value": [b"a"], "timestamp": pa.array([None], pa.timestamp("us"))},
            "`timestamp` holds nulls",
        ),
        ({"value": [b"a", b"b"], "headers": [None, [{"k": "x"}]]}, "`headers`, row 1"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns, problem):
    with pytest.raises(InvalidRequest, match=problem):
        from_arrow(pa.record_batch(columns))


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_whose_columns_are_opened_later_gives_the_same(compression):
    data = encode(later.COLUMNS, compression=compression, offset_deltas=[0, 4, 9], base_offset=70)
    assert to_arrow(RecordBatch(data, columns_later=True)) == to_arrow(RecordBatch(data))


@pytest.mark.parametrize(("position", "value", "sparse"), later.FORGERIES)
def test_wrong_lengths_and_offsets_are_found(position, value, sparse):
    data = later.forged(position, value, sparse=sparse)
    with pytest.raises(CorruptBatch):
        to_arrow(RecordBatch(data, columns_later=True))
