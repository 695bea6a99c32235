"""The sink's options, and which rows go to which topic and partition."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.sink.options import parse_sink_options
from lakemq.spark_plugin.sink.rows import check_columns, shares
from lakemq.spark_plugin.sink.sink import check_replayed, query_id

NOW_MS = 1_700_000_000_000


def parse(streaming=False, **options):
    return parse_sink_options({"bootstrap": "b:1", **options}, streaming=streaming)


def test_options_in_any_case():
    found = parse(TOPIC="t", sinkid="s", batchid="7", Compression="ZSTD", batchBytes="64KB")
    assert (found.topic, found.sink_id, found.batch_id) == ("t", "s", 7)
    assert (found.compression, found.batch_bytes) == ("zstd", 65_536)
    assert parse(stagingTimeout="90s").staging_timeout_ms == 90_000


@pytest.mark.parametrize(
    ("options", "streaming", "problem"),
    [
        ({"topics": "t"}, False, "unknown option topics; did you mean topic"),
        ({"compression": "gzip"}, False, "takes none, lz4, zstd"),
        ({"batchId": "1"}, False, "batchId needs sinkId"),
        ({"batchId": "x", "sinkId": "s"}, False, "takes a whole number"),
        ({"batchId": "1", "sinkId": "s"}, True, "a stream numbers its own batches"),
        ({"sinkId": "s" * 201}, False, "up to 200 printable bytes"),
        ({"bootstrap": ""}, False, "bootstrap .* is missing"),
    ],
)
def test_options_that_cannot_be(options, streaming, problem):
    with pytest.raises(OptionError, match=problem):
        parse(streaming, **options)


@pytest.mark.parametrize(
    ("columns", "topic", "problem"),
    [
        ([("value", "binary"), ("valeu", "int")], "t", "valeu in a record; did you mean value"),
        ([("value", "int")], "t", "value is int; the sink takes binary or string"),
        ([("value", "string"), ("headers", "map<string,string>")], "t", "column headers is map"),
        ([("key", "string")], "t", "no column value"),
        ([("value", "string")], "", "say where to"),
    ],
)
def test_columns_that_cannot_be(columns, topic, problem):
    with pytest.raises(OptionError, match=problem):
        check_columns(columns, topic)


def test_columns_that_can_be():
    headers = "array<struct<key:string,value:binary>>"
    check_columns([("topic", "string"), ("value", "string"), ("headers", headers)], "")
    check_columns([("value", "binary"), ("timestamp", "timestamp"), ("partition", "int")], "t")


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([None, 0, 1]), st.integers(0, 99)), max_size=30
)


@given(ROWS)
def test_every_row_goes_to_one_share_in_its_order(rows):
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(columns[0], pa.string()),
            pa.array(columns[1], pa.int32()),
            pa.array(columns[2], pa.int64()),
        ],
        names=["topic", "partition", "value"],
    )
    found = [
        (share.topic, share.partition, value)
        for share in shares(batch, "", NOW_MS)
        for value in share.rows.column("value").to_pylist()
    ]
    for place in {(topic, partition) for topic, partition, _ in rows}:
        wanted = [row for row in rows if row[:2] == place]
        assert [row for row in found if row[:2] == place] == wanted
    assert len(found) == len(rows)


def test_the_option_goes_before_the_column_and_absent_times_are_now():
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["x", None]),
            pa.array([at, None], pa.timestamp("us", tz="UTC")),
            pa.array([b"1", b"2"]),
        ],
        names=["topic", "timestamp", "value"],
    )
    (share,) = shares(batch, "option", NOW_MS)
    assert (share.topic, share.rows.schema.names) == ("option", ["timestamp", "value"])
    now = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC)
    assert share.rows.column("timestamp").to_pylist() == [at, now]
    with pytest.raises(ValueError, match="a row has no topic"):
        list(shares(batch, "", NOW_MS))


def test_a_batch_below_the_last_is_another_checkpoint():
    check_replayed("s", 5, 5)
    with pytest.raises(OptionError, match="sink s has batch 5, and this write is batch 4"):
        check_replayed("s", 4, 5)


def test_the_query_is_known_by_its_checkpoint(tmp_path):
    assert query_id("") == query_id(str(tmp_path)) == query_id("nix://x") == ""
    (tmp_path / "metadata").write_text(json.dumps({"id": "q-1"}))
    for form in (f"{tmp_path}", f"{tmp_path}/", f"file://{tmp_path}", f"file:{tmp_path}"):
        assert query_id(form) == "q-1"
