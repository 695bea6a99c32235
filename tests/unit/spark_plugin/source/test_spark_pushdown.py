"""Filters that Spark pushes down: what is read for them, and that nothing wanted is left out."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.source.options import parse_options
from lakemq.spark_plugin.source.planning import OffsetRange
from lakemq.spark_plugin.source.pushdown import Pushed, narrow, pushed
from lakemq.spark_plugin.source.reader import FilteringReader

COLUMNS = ("partition", "offset", "timestamp", "key", "value")
COMPARED = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
}


def read(*filters):
    options = parse_options({"bootstrap": "memory", "subscribe": "t"}, streaming=False)
    reader = FilteringReader(options, COLUMNS)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark applies them again"
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def fill(memory):
    memory.create_topic("t", 3)
    for partition in range(3):
        for first in range(0, 30, 10):
            keys = [b"k%d" % (n % 4) if n % 5 else None for n in range(first, first + 10)]
            times = [1_700_000_000_000 + 7 * ((n * 13) % 30) for n in range(first, first + 10)]
            values = [b"%d" % n for n in range(first, first + 10)]
            memory.append("t", partition, Columns(values, keys, None, times))


def test_less_is_read(memory):
    fill(memory)
    assert len(read()) == 90
    assert len(read(EqualTo(("partition",), 1))) == 30
    assert len(read(GreaterThan(("offset",), 9), LessThan(("offset",), 15))) == 15
    assert len(read(In(("offset",), (4, 6)))) == 9, "from the least to the greatest"
    assert {row["key"] for row in read(EqualTo(("key",), b"k1"))} == {b"k1"}
    assert {row["key"] for row in read(In(("key",), (b"k1", b"k2")))} == {b"k1", b"k2"}
    assert read(EqualTo(("key",), b"k1"), EqualTo(("key",), b"k2")) == []
    assert read(EqualTo(("partition",), 1), In(("partition",), (0, 2))) == []
    late = datetime.fromtimestamp(1_700_000_000.2, UTC)
    assert 0 < len(read(GreaterThanOrEqual(("timestamp",), late))) < 90


def test_other_filters_change_nothing(memory):
    fill(memory)
    others = [
        Not(EqualTo(("partition",), 1)),
        IsNotNull(("key",)),
        EqualTo(("value",), b"1"),
        EqualTo(("headers", "key"), "x"),
        LessThan(("timestamp",), datetime.now(UTC)),
        GreaterThan(("timestamp",), datetime(2030, 1, 1)),
        GreaterThan(("key",), b"a"),
    ]
    assert pushed(others) == Pushed()


FILTERS = st.one_of(
    st.tuples(st.sampled_from(list(COMPARED)[:6]), st.just("offset"), st.integers(-2, 32)),
    st.tuples(st.sampled_from(list(COMPARED)[:6]), st.just("partition"), st.integers(-1, 3)),
    st.tuples(st.just(In), st.just("partition"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    st.tuples(st.just(In), st.just("offset"), st.tuples(st.integers(0, 40), st.integers(0, 40))),
)


@given(st.lists(FILTERS, max_size=4))
def test_no_wanted_offset_is_left_out(chosen):
    ranges = [OffsetRange("t", "id", partition, 5, 30) for partition in range(3)]
    left = narrow(ranges, pushed([kind((column,), value) for kind, column, value in chosen]))
    read = {(each.partition, offset) for each in left for offset in range(each.start, each.end)}
    for partition in range(3):
        for offset in range(5, 30):
            row = {"partition": partition, "offset": offset}
            wanted = all(COMPARED[kind](row[column], value) for kind, column, value in chosen)
            assert not wanted or (partition, offset) in read
