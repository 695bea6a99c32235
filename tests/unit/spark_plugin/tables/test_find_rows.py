"""Goal: a record is found in a table, with file, row and commit; a row leads back to its record."""

from __future__ import annotations

import pytest
from pyarrow import parquet

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance.find_rows import (
    Term,
    find_record,
    find_where,
    parse_where,
)
from lakemq.spark_plugin.export.tables.open_table import open_table
from tests.support.spark.lake_tables import FORMATS, target_in

SCHEMA = "n bigint, room string, at timestamp, ok boolean"


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


def export(target, **settings):
    exporter = make_exporter(ExportSettings("memory", "t", target, "e", **settings), run_here)
    exporter.start()
    while exporter.step():
        pass
    exporter.close()


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


def fill(memory, first, count):
    for partition in range(2):
        values = [
            b'{"n":%d,"room":"r%d","at":"2026-01-0%dT00:00:00Z","ok":true}'
            % (n, partition, 1 + n % 9)
            for n in range(first, first + count)
        ]
        memory.append_values("t", partition, *values)


def test_each_commit_tells_which_records_it_brought(memory, target):
    memory.create_topic("t", 2)
    fill(memory, 0, 50)
    export(target)
    first = open_table(target, None)
    (early,) = find_record(first, "t", 1, 30)
    fill(memory, 50, 50)
    export(target)
    table = open_table(target, None)
    assert find_record(table, "t", 1, 30) == [early]
    (late,) = find_record(table, "t", 1, 80)
    assert (late.topic, late.partition, late.offset) == ("t", 1, 80)
    assert early.commit is not None and late.commit is not None
    assert early.commit.name != late.commit.name
    assert early.commit.at_ms <= late.commit.at_ms
    assert early.file != late.file
    # The row is where it is said to be.
    rows = parquet.read_table(late.file, columns=["offset"]).column("offset").to_pylist()
    assert rows[late.number] == 80
    assert find_record(table, "t", 1, 100) == []
    assert find_record(table, "other", 1, 30) == []


def test_a_row_leads_back_to_its_record(memory, target):
    memory.create_topic("t", 2)
    fill(memory, 0, 40)
    export(target, format="json", value_schema=SCHEMA)
    table = open_table(target, None)
    (row,) = find_where(table, "n = 7 and room = 'r1'", 5)
    assert (row.topic, row.partition, row.offset) == ("t", 1, 7)
    assert [each.offset for each in find_where(table, "n >= 38 AND room='r0' and ok=true", 5)] == [
        38, 39
    ]  # fmt: skip
    assert len(find_where(table, "n < 30", 3)) == 3
    assert [each.offset for each in find_where(table, "_meta.offset = 9 and n != 8", 5)] == [9, 9]
    at = find_where(table, "at = '2026-01-03T00:00:00Z' and n > 30", 5)
    assert [(each.partition, each.offset) for each in at] == [(0, 38), (1, 38)]


def test_columns_that_delta_keeps_in_its_log(memory, target):
    memory.create_topic("t", 2)
    fill(memory, 0, 10)
    export(target, partition_by="topic, partition")
    table = open_table(target, None)
    (row,) = find_record(table, "t", 1, 3)
    assert (row.topic, row.partition, row.offset) == ("t", 1, 3)
    found = find_where(table, "partition = 1 and offset = 4", 5)
    assert [(each.partition, each.offset) for each in found] == [(1, 4)]


def test_conditions_are_read():
    assert parse_where("a.b = 'it''s and = x' AND c>=-1.5e3 and d != true") == [
        Term("a.b", "=", "it's and = x"), Term("c", ">=", "-1.5e3"), Term("d", "!=", "true")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "can't be read"),
        ("a", "can't be read"),
        ("a = 'x' or b = 1", "only `and`"),
        ("a = 'x' and", "can't be read"),
        ("a = x", "can't be read"),
        ("a in (1)", "can't be read"),
    ],
)
def test_conditions_that_are_refused(text, says):
    with pytest.raises(OptionError, match=says):
        parse_where(text)


def test_mistakes_name_column_and_type(memory, tmp_path):
    target = target_in(tmp_path, "parquet")
    memory.create_topic("t", 2)
    fill(memory, 0, 1)
    export(target, format="json", value_schema=SCHEMA)
    table = open_table(target, None)
    with pytest.raises(OptionError, match="no column 'rom'; there are .*room"):
        find_where(table, "rom = 'x'", 1)
    with pytest.raises(OptionError, match="no column '_meta.x'"):
        find_where(table, "_meta.x = 1", 1)
    with pytest.raises(OptionError, match="n is int64, not 'seven'"):
        find_where(table, "n = 'seven'", 1)
