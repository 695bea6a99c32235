"""Goal: a bounded part of a topic is a table to DuckDB, Polars, pandas and whatever else reads
Arrow's PyCapsule interface, the same records each time it is read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import lakemq
from tests.support.node.node import NodeProcess

pytestmark = pytest.mark.partitions(2)
DAY_MS = 1_790_000_000_000


def fill(client: lakemq.SyncClient, topic: str) -> None:
    """Ten records in each partition, a second apart: keys a and b by turns, values 0 to 9."""
    for partition in range(2):
        records = [
            lakemq.NewRecord(
                b"%d" % n, key=b"ab"[n % 2 : n % 2 + 1], timestamp_ms=DAY_MS + n * 1000
            )
            for n in range(10)
        ]
        client.send_batch(topic, records[:7], partition=partition)
        for record in records[7:]:
            client.send_batch(topic, [record], partition=partition)


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(DAY_MS / 1000 + second, UTC)


def found(scan: lakemq.TopicScan) -> list[tuple[int, int, bytes]]:
    return [(row["partition"], row["offset"], row["value"]) for row in pa.table(scan).to_pylist()]


def expected(first: int, end: int) -> list[tuple[int, int, bytes]]:
    return [(partition, n, b"%d" % n) for partition in range(2) for n in range(first, end)]


def test_bounds_by_offset_time_and_end(client: lakemq.SyncClient, topic: str) -> None:
    assert found(client.scan(topic)) == []
    fill(client, topic)
    assert found(client.scan(topic)) == expected(0, 10)
    # In the midst of a stored batch, at both ends.
    assert found(client.scan(topic, 2, 5)) == expected(2, 5)
    assert found(client.scan(topic, moment(3), moment(9))) == expected(3, 9)
    assert found(client.scan(topic, 8, 100)) == expected(8, 10)  # as far as there is something
    assert found(client.scan(topic, 5, 2)) == []
    assert found(client.scan(topic, partitions=[1])) == expected(0, 10)[10:]
    scan = client.scan(topic, 9, columns=["value", "offset"])
    assert pa.table(scan).to_pylist() == [{"value": b"9", "offset": 9}] * 2
    assert scan.schema.names == ["value", "offset"] and scan.bounds == {0: (9, 10), 1: (9, 10)}


def test_the_same_records_each_time(client: lakemq.SyncClient, topic: str) -> None:
    fill(client, topic)
    scan = client.scan(topic, 4)
    client.send_batch(topic, [lakemq.NewRecord(b"later")], partition=0)
    assert found(scan) == found(scan) == expected(4, 10)
    reader = scan.reader()
    assert reader.read_next_batch().num_rows == 12  # tiny batches come together
    reader = scan.reader()
    reader.close()  # left at once: the call ends with it, and the client can be closed


def test_records_by_key(client: lakemq.SyncClient, topic: str) -> None:
    fill(client, topic)
    scan = client.scan(topic, 1, 9, wanted=lakemq.RecordFilter.of(key=b"a"))
    assert [n for _, n, _ in found(scan)] == [2, 4, 6, 8, 2, 4, 6, 8]
    assert found(client.scan(topic, wanted=lakemq.RecordFilter.of(key=b"none"))) == []


def test_mistakes_are_told_before_a_query_runs(client: lakemq.SyncClient, topic: str) -> None:
    fill(client, topic)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"start": -1}, "start is -1"),
        ({"end": "now"}, "end is 'now'"),
        ({"end": datetime(2026, 1, 1)}, "end needs a time zone"),
        ({"columns": ["valeu"]}, "'valeu'"),
        ({"columns": "value"}, "'value'"),
        ({"columns": ["key", "key"]}, "'key'"),
        ({"columns": []}, "columns is empty"),
        ({"on_corrupt": "stop"}, "on_corrupt is 'stop'"),
    ]
    for options, message in wrong:
        with pytest.raises(lakemq.InvalidRequest, match=message):
            client.scan(topic, **options)
    with pytest.raises(lakemq.UnknownPartition, match="no partition 7"):
        client.scan(topic, partitions=[7])
    client.admin.delete_records(topic, {0: 3})
    with pytest.raises(lakemq.OffsetOutOfRange, match="partition 0 starts at offset 3"):
        client.scan(topic, 1)
    assert len(found(client.scan(topic))) == 17


def test_records_that_went_away_are_no_empty_result(client: lakemq.SyncClient, topic: str) -> None:
    fill(client, topic)
    scan = client.scan(topic)
    client.admin.delete_records(topic, {0: 3})
    with pytest.raises(lakemq.OffsetOutOfRange):
        scan.reader().read_all()
    # Through the C interface, an error is a text.
    with pytest.raises(pa.ArrowInvalid, match="offset 0 is not within 3..10"):
        found(scan)
    client.delete_topic(topic)
    client.create_topic(topic, partitions=2)
    fill(client, topic)
    with pytest.raises(lakemq.UnknownTopic):  # another one, of the same name
        scan.reader().read_all()


def test_duckdb(node: NodeProcess, client: lakemq.SyncClient, topic: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    fill(client, topic)
    scan = client.scan(topic, 1, moment(9))  # noqa: F841  # DuckDB finds it by its name
    query = (
        "SELECT decode(key) AS k, count(*), max(CAST(decode(value) AS INT)) FROM scan GROUP BY k"
    )
    for _ in range(2):  # one may be queried as often as one likes
        assert sorted(duckdb.sql(query).fetchall()) == [("a", 8, 8), ("b", 8, 7)]
    assert len(duckdb.sql("SELECT value FROM scan LIMIT 3").fetchall()) == 3
    pairs = duckdb.sql('SELECT count(*) FROM scan a JOIN scan b USING (partition, "offset")')
    assert pairs.fetchall() == [(16,)]


def test_polars(client: lakemq.SyncClient, topic: str) -> None:
    polars = pytest.importorskip("polars")
    fill(client, topic)
    frame = polars.DataFrame(client.scan(topic, 1, moment(9)))
    assert frame.height == 16 and frame["value"].to_list()[:2] == [b"1", b"2"]
    assert frame["timestamp"][0] == moment(1) and frame.columns[:3] == [
        "topic",
        "partition",
        "offset",
    ]


def test_pandas(client: lakemq.SyncClient, topic: str) -> None:
    pytest.importorskip("pandas")
    fill(client, topic)
    frame = client.scan(topic, 1, moment(9), columns=["offset", "value"]).reader().read_pandas()
    assert frame["offset"].tolist() == [*range(1, 9), *range(1, 9)]
    assert frame["value"].tolist()[0] == b"1"
