"""Column types that grow, schemas that change between runs, and tables made from other formats."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from lakemq.broker_core.api.schemas.sparkplug import Payload
from lakemq.broker_core.api.schemas.types import framed
from lakemq.spark_plugin.errors import OptionError, TableError
from lakemq.spark_plugin.export.decoding.column_types import META, Type, parse_schema
from lakemq.spark_plugin.export.decoding.evolution import needed_type
from lakemq.spark_plugin.export.decoding.given_schema import infer_schema
from lakemq.spark_plugin.export.job import run, write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance.audit import audit
from lakemq.spark_plugin.export.tables.open_table import open_table
from lakemq.spark_plugin.export.tables.table import ExportKey
from lakemq.spark_plugin.export.tables.target import Target
from lakemq.spark_plugin.source.broker_reader import view_of
from tests.support.spark.lake_tables import FORMATS, places, read_table, target_in


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


def export(target, schema, evolve="widen", format="json", **more):
    exporter = make_exporter(
        ExportSettings(
            "memory", "t", target, "e", format=format, value_schema=schema, evolve=evolve, **more
        ),
        run_here,
    )
    exporter.start()
    try:
        reports = list(iter(exporter.step, None))
        exporter.compact()
        return reports
    finally:
        exporter.close()


def send(memory, *values):
    if "t" not in memory._ids:
        memory.create_topic("t", 1)
    memory.append_values("t", 0, *(json.dumps(value).encode() for value in values))


def rows(target):
    found = [(row.pop(META)["offset"], row) for row in read_table(target).to_pylist()]
    return [row for _, row in sorted(found, key=lambda each: each[0])]


SCHEMA = "n int, d decimal(5,2), in struct<x: smallint>, many array<int>, room string"


def test_a_value_that_does_not_fit_makes_its_column_grow(memory, target):
    small = {"n": 1, "d": 1.25, "in": {"x": 2}, "many": [3], "room": "r"}
    large = {"n": 2**40, "d": 12345.5, "in": {"x": 2**20}, "many": [1, 2**33], "room": "r"}
    send(memory, small)
    export(target, SCHEMA)
    send(memory, small, large, {"n": "text"})
    export(target, SCHEMA, partition_by="")
    assert rows(target) == [
        {**small, "d": Decimal("1.25")},
        {**small, "d": Decimal("1.25")},
        {**large, "d": Decimal("12345.50")},
    ]
    kinds = {field.name: str(field.type) for field in read_table(target).schema}
    assert kinds["n"] == "int64"
    assert kinds["d"] == "decimal128(7, 2)"
    assert places(read_table(target.dead_letters(""))) == [(0, 3)], "no type holds both"
    send(memory, small)
    export(target, SCHEMA)
    assert len(rows(target)) == 4


def test_a_partitioned_table_grows(memory, target):
    send(memory, {"room": "a", "n": 1}, {"room": None, "n": 2})
    export(target, "room string, n int", partition_by="room")
    send(memory, {"room": "b", "n": 2**40})
    export(target, "room string, n int", partition_by="room")
    assert rows(target) == [
        {"room": "a", "n": 1},
        {"room": None, "n": 2},
        {"room": "b", "n": 2**40},
    ]


def test_small_files_of_before_and_after_are_compacted(memory, target):
    for number in range(3):
        send(memory, {"n": number})
        export(target, "n int", compact_files=50)
    send(memory, {"n": 2**40, "new": {"x": 1}})
    export(target, "n int", compact_files=1)
    assert [row["n"] for row in rows(target)] == [0, 1, 2, 2**40]
    assert rows(target)[3]["new"] == {"x": 1}


def test_add_alone_lets_nothing_grow(memory, target):
    send(memory, {"n": 2**40})
    export(target, "n int", evolve="add")
    assert rows(target) == []
    assert places(read_table(target.dead_letters(""))) == [(0, 0)]


def test_a_schema_that_grew_between_runs(memory, target):
    memory.create_topic("t", 1)
    memory.append_values("t", 0, b"1,x")
    export(target, "n int, s string", evolve="strict", format="csv")
    memory.append_values("t", 0, b"1099511627776,y,0.5")
    wider = "n bigint, s string, f double"
    with pytest.raises(TableError, match="it lacks f"):
        export(target, wider, evolve="strict", format="csv")
    with pytest.raises(TableError, match="column n is int, the export writes bigint; --evolve"):
        export(target, wider, evolve="add", format="csv")
    export(target, wider, evolve="widen", format="csv")
    assert rows(target) == [{"n": 1, "s": "x", "f": None}, {"n": 2**40, "s": "y", "f": 0.5}]
    with pytest.raises(TableError, match="column s is string, the export writes bigint"):
        export(target, "n bigint, s bigint, f double", format="csv")


def test_rows_of_one_record_are_audited_as_one(memory, target):
    memory.create_topic("t", 1)
    payload = Payload(seq=1)
    for name in ("a", "b", "c"):
        payload.metrics.add(name=name)
    memory.append_values(
        "t", 0, payload.SerializeToString(), b"\xff", Payload().SerializeToString()
    )
    reports = export(target, "", evolve="strict", format="sparkplug")
    assert [(each.rows, each.dead_letters) for each in reports] == [(4, 1)]
    found = sorted(
        (row[META]["offset"], row[META]["part"], row["metric"])
        for row in read_table(target).to_pylist()
    )
    assert found == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (2, 0, None)]
    view = view_of([memory.describe_topic("t")])["t"]
    key = ExportKey("e", "t", view.topic_id, (0,))
    (audited,) = audit(
        memory, key, view, open_table(target, None), open_table(target.dead_letters(""), None)
    )
    assert audited.sentence("t").startswith("t-0: complete up to offset 2 (3 records, 3 rows")


@pytest.mark.parametrize(
    ("kind", "value", "needed"),
    [
        ("int", 2**31, "bigint"), ("tinyint", 300, "smallint"), ("int", 5, None),
        ("bigint", 2**63, None), ("int", 1.5, None), ("int", True, None), ("float", 1e39, "double"),
        ("decimal(5,2)", 1234, "decimal(6,2)"), ("decimal(5,2)", "99999999.5", "decimal(10,2)"),
        ("decimal(5,2)", 1e40, None), ("decimal(5,2)", "x", None), ("decimal(5,2)", 99.999, None),
        ("string", 5, None),
    ],
)  # fmt: skip
def test_which_types_a_value_needs(kind, value, needed):
    (column,) = parse_schema(f"c {kind}")
    assert needed_type(column[1], value) == (Type(needed) if needed else None)
    nested = needed_type(Type("struct", (("c", column[1]),)), {"c": value, "other": 1})
    assert nested == (Type("struct", (("c", Type(needed)),)) if needed else None)


def test_columns_are_inferred_from_the_first_records_and_then_from_the_table(memory, tmp_path):
    target = target_in(tmp_path, "delta")
    send(memory, {"n": 1}, {"n": 2.5, "in": {"x": "a"}}, [1], {"nothing": None})
    given = (memory, "t", "json", ",", target, "", False)
    assert infer_schema(*given) == "`n` double, `in` struct<`x` string>"
    open_table(
        target,
        run.decoded_schema(
            ExportSettings("memory", "t", target, "e", format="json", value_schema="n double")
        ),
    )
    assert infer_schema(*given) == "`n` double"
    memory.create_topic("framed", 1)
    memory.append_values("framed", 0, framed(300, b'{"n":1}'))
    nowhere = Target("delta", str(tmp_path / "nowhere"))
    assert infer_schema(memory, "framed", "json", ",", nowhere, "", False) == "`n` bigint"
    memory.create_topic("lines", 1)
    memory.append_values("lines", 0, b"a,1,2024-01-01", b"b,2.5,", b"broken")
    found = infer_schema(memory, "lines", "csv", ",", nowhere, "", False)
    assert found == "`_c0` string, `_c1` double, `_c2` date"
    memory.create_topic("empty", 1)
    with pytest.raises(OptionError, match="first records of topic empty tell no column"):
        infer_schema(memory, "empty", "json", ",", nowhere, "", False)
