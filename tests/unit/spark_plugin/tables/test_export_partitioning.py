"""Partitioned tables: rows share files by day or by value, and readers skip the others."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.errors import OptionError, TableError
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tables import file_writer
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.partitioning import (
    PartitionField,
    parse_partition_by,
    split,
)
from tests.support.spark.lake_tables import FORMATS, places, read_table, target_in

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01
SCHEMA = "device string, n bigint, at timestamp_ms"


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


def export(target, partition_by, schema="", **settings):
    settings = {"format": "json" if schema else "raw", "value_schema": schema, **settings}
    exporter = make_exporter(
        ExportSettings("memory", "t", target, "e", partition_by=partition_by, **settings), run_here
    )
    exporter.start()
    compacted = []
    while exporter.step():
        compacted.append(exporter.compact())
    exporter.close()
    return compacted


def fill(memory, days=3, size=10):
    """Records of one day after the other, and late ones of the first day at the end."""
    memory.create_topic("t", 1)
    for day in [*range(days), 0]:
        times = [NEW_YEAR_MS + day * DAY_MS + n * 3_600_000 for n in range(size)]
        values = [
            b'{"device":"d%d","n":%d,"at":%d}' % (n % 2, n, time) for n, time in enumerate(times)
        ]
        memory.append("t", 0, Columns(values, None, None, times))


def live(target):
    return open_table(target, None).live_files()


def partitions(target):
    """Partition values -> rows, by what the table's files are said to hold."""
    found = {}
    if target.format == "delta":
        from deltalake import DeltaTable

        actions = pa.table(DeltaTable(target.path).get_add_actions(flatten=True))
        names = [name for name in actions.column_names if name.startswith("partition.")]
        for row in actions.to_pylist():
            values = tuple(str(row[name]) for name in names)
            found[values] = found.get(values, 0) + row["num_records"]
        return found
    for file in live(target):
        values = tuple(str(each) for each in file.partition_values)
        found[values] = found.get(values, 0) + file.rows
    return found


def test_rows_share_files_by_day(memory, target):
    fill(memory)
    export(target, "day(timestamp)")
    assert partitions(target) == {
        ("2026-01-01",): 20,
        ("2026-01-02",): 10,
        ("2026-01-03",): 10,
    }
    rows = read_table(target)
    assert places(rows) == [(0, n) for n in range(40)]
    if target.format != "iceberg":
        days = [moment.date() for moment in rows["timestamp"].to_pylist()]
        assert rows["timestamp_day"].to_pylist() == days


def test_several_fields_of_decoded_rows(memory, target):
    fill(memory, days=1, size=2)
    memory.append_values("t", 0, b'{"n":7}', b'{"device":"d0","at":0}', b"bad")
    export(target, "month(at), device", SCHEMA)
    assert partitions(target) == {
        ("2026-01", "d0"): 2,
        ("2026-01", "d1"): 2,
        ("None", "None"): 1,
        ("1970-01", "d0"): 1,
    }
    rows = sorted(read_table(target).to_pylist(), key=lambda row: row["_meta"]["offset"])
    assert [row["device"] for row in rows] == ["d0", "d1", "d0", "d1", None, "d0"]
    assert [row["n"] for row in rows] == [0, 1, 0, 1, 7, None]


def test_hours_of_the_records_own_time(memory, target):
    fill(memory, days=1, size=3)
    export(target, "hour(_meta.timestamp), n", SCHEMA)
    assert set(partitions(target)) == {(f"2026-01-01 0{hour}", str(hour)) for hour in range(3)}
    assert places(read_table(target)) == [(0, n) for n in range(6)]


def test_readers_skip_partitions(memory, tmp_path):
    fill(memory)
    delta, iceberg = target_in(tmp_path, "delta"), target_in(tmp_path, "iceberg")
    export(delta, "day(timestamp)")
    export(iceberg, "day(timestamp)")
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    chosen = DeltaTable(delta.path).file_uris(
        file_pruning_predicate=[("timestamp_day", "=", "2026-01-02")]
    )
    assert len(chosen) == 1
    with load_catalog("default", **iceberg.catalog) as catalog:
        scan = catalog.load_table(iceberg.table).scan(
            "timestamp >= '2026-01-02T00:00:00+00:00' and timestamp < '2026-01-03T00:00:00+00:00'"
        )
        assert len(list(scan.plan_files())) == 1
        assert scan.to_arrow().num_rows == 10


def test_compaction_stays_inside_partitions(memory, target):
    fill(memory)
    done = export(target, "day(timestamp)", commit_rows=5, compact_files=4)
    assert any(done)
    assert partitions(target) == {
        ("2026-01-01",): 20,
        ("2026-01-02",): 10,
        ("2026-01-03",): 10,
    }
    assert len(live(target)) < 8
    assert places(read_table(target)) == [(0, n) for n in range(40)]


def test_many_partitions_at_once_are_bounded(memory, target, monkeypatch):
    monkeypatch.setattr(file_writer, "_OPEN_FILES_MAX", 2)
    fill(memory, days=9)
    export(target, "day(timestamp)")
    assert len(partitions(target)) == 9
    assert places(read_table(target)) == [(0, n) for n in range(100)]


def test_another_partitioning_than_the_tables_is_refused(memory, target):
    fill(memory)
    export(target, "day(timestamp)")
    with pytest.raises(TableError, match="timestamp_day"):
        export(target, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("days(timestamp)", r"there is no days\(\); did you mean day\?"),
        ("day(timestamp", "neither column nor day"),
        ("day(when)", "there is no column when"),
        ("day(value)", "value is binary, no time"),
        ("value", "value is binary; text, whole numbers and dates"),
        ("topic, topic", "a field is there twice"),
    ],
)
def test_what_cannot_be_partitioned_by_is_explained(memory, text, problem, tmp_path):
    fill(memory)
    with pytest.raises(OptionError, match=problem):
        export(target_in(tmp_path, "delta"), text)


MOMENTS = st.lists(st.none() | st.integers(-(10**15), 4 * 10**15), min_size=1, max_size=20)


@given(MOMENTS, st.lists(st.sampled_from(["a", "b", None]), min_size=20, max_size=20))
def test_every_row_is_in_the_partition_of_its_values(moments, keys):
    count = len(moments)
    table = pa.table(
        {
            "at": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "key": pa.array(keys[:count], pa.string()),
            "row": range(count),
        }
    )
    fields = parse_partition_by("day(at), hour(at), month(at), key")
    assert fields[0] == PartitionField("day", "at") and fields[3].name == "key"
    seen = {}
    for values, rows in split(table, fields):
        assert values not in seen.values()
        numbers = rows["row"].to_pylist()
        assert numbers == sorted(numbers) and numbers
        seen |= dict.fromkeys(numbers, values)
    assert sorted(seen) == list(range(count))
    epoch = datetime.datetime(1970, 1, 1)
    for number, values in seen.items():
        moment = moments[number]
        when = None if moment is None else epoch + datetime.timedelta(microseconds=moment)
        assert values == (
            when and when.strftime("%Y-%m-%d"),
            when and when.strftime("%Y-%m-%d %H"),
            when and when.strftime("%Y-%m"),
            keys[number],
        )
