"""Schema evolution: fields without a column become columns, exactly and for all rows."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakemq.spark_plugin.errors import OptionError, TableError
from lakemq.spark_plugin.export.decoding.column_types import META, SCALARS, Type, parse_schema
from lakemq.spark_plugin.export.decoding.evolution import (
    evolve,
    merge_found,
    schema_text,
    type_of_value,
)
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from tests.support.spark.lake_tables import FORMATS, places, read_table, target_in


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture(params=FORMATS)
def target(request, tmp_path):
    return target_in(tmp_path, request.param)


def export(target, schema="n bigint", evolve="add", run=run_here, **settings):
    exporter = make_exporter(
        ExportSettings(
            "memory",
            "t",
            target,
            "e",
            format="json",
            value_schema=schema,
            evolve=evolve,
            **settings,
        ),
        run,
    )
    exporter.start()
    try:
        return list(iter(exporter.step, None))
    finally:
        exporter.close()


def rows(target):
    """Rows by offset, without `_meta`."""
    found = {}
    for row in read_table(target).to_pylist():
        meta = row.pop(META)
        found[meta["partition"], meta["offset"]] = row
    return found


def send(memory, *values, partition=0):
    if "t" not in memory._ids:
        memory.create_topic("t", 2)
    memory.append_values("t", partition, *(json.dumps(value).encode() for value in values))


def test_new_fields_become_columns_of_all_rows_of_the_commit(memory, target):
    send(memory, {"n": 1})
    export(target)
    send(memory, {"n": 2}, {"n": 3, "room": "r", "in": {"x": 1, "deep": [{"y": True}]}})
    send(memory, {"n": 4, "celsius": 21}, {"n": 5, "celsius": 21.5}, partition=1)
    export(target)
    send(memory, {"n": 6, "in": {"z": "late"}})
    export(target)
    found = rows(target)
    empty = {"room": None, "celsius": None, "in": None}
    assert found[0, 0] == {"n": 1, **empty}
    assert found[0, 1] == {"n": 2, **empty}
    assert found[0, 2]["room"] == "r"
    assert found[0, 2]["in"] == {"x": 1, "deep": [{"y": True}], "z": None}
    assert [found[1, n]["celsius"] for n in range(2)] == [21.0, 21.5]
    # pyiceberg 0.12 gives an empty list for a null one inside a struct; the file holds null.
    assert found[0, 3]["in"] in [{"x": None, "deep": deep, "z": "late"} for deep in (None, [])]
    assert len(found) == 6


def test_columns_can_come_from_the_records_alone(memory, target):
    send(memory, {}, {"a": "x", "at": "2026-01-01T00:00:00Z"}, {"none": None})
    export(target, schema="")
    assert rows(target) == {
        (0, 0): {"a": None, "at": None},
        (0, 1): {"a": "x", "at": "2026-01-01T00:00:00Z"},
        (0, 2): {"a": None, "at": None},
    }


def test_strict_leaves_unknown_fields_out(memory, target):
    send(memory, {"n": 1, "extra": 2})
    export(target, evolve="strict")
    assert rows(target) == {(0, 0): {"n": 1}}


def test_a_field_with_values_of_several_types_loses_no_record(memory, target):
    send(memory, *({"n": n, "odd": "text" if n % 2 else n} for n in range(20)))
    export(target)
    dead = places(read_table(target.dead_letters("")))
    found = rows(target)
    assert sorted([*found, *dead]) == [(0, n) for n in range(20)]
    assert {row["odd"] for row in found.values()} == set(range(0, 20, 2))


def test_columns_that_a_shorter_schema_does_not_name_are_null(memory, tmp_path):
    target = target_in(tmp_path, "parquet")
    memory.create_topic("t", 1)
    for value, schema in ((b"1,x", "n int, room string"), (b"2", "n int")):
        memory.append_values("t", 0, value)
        given = ExportSettings(
            "memory", "t", target, "e", format="csv", value_schema=schema, evolve="add"
        )
        exporter = make_exporter(given, run_here)
        exporter.start()
        assert exporter.step().rows == 1
        exporter.close()
    assert rows(target) == {(0, 0): {"n": 1, "room": "x"}, (0, 1): {"n": 2, "room": None}}


def test_a_partitioned_table_evolves(memory, target):
    send(memory, {"n": 1, "at": 1767225600000})
    schema = "n bigint, at timestamp_ms"
    export(target, schema, partition_by="day(at), n")
    send(memory, {"n": 2, "at": 1767225600000, "new": "x"})
    export(target, schema, partition_by="day(at), n")
    assert [(row["n"], row["new"]) for _, row in sorted(rows(target).items())] == [
        (1, None),
        (2, "x"),
    ]


def test_a_crash_after_the_columns_came_is_no_harm(memory, target):
    class Crash(Exception):
        pass

    send(memory, {"n": 1, "new": "x"})
    calls = []

    def crash_on_second(tasks):
        calls.append(tasks)
        if len(calls) == 2:
            raise Crash
        return run_here(tasks)

    with pytest.raises(Crash):
        export(target, run=crash_on_second)
    assert rows(target) == {}
    export(target)
    assert rows(target) == {(0, 0): {"n": 1, "new": "x"}}


def test_a_table_that_evolved_is_not_taken_for_a_strict_one(memory, target):
    send(memory, {"n": 1, "new": "x"})
    export(target)
    with pytest.raises(TableError, match="it also has new"):
        export(target, evolve="strict")


def test_columns_are_asked_for_one_way_or_the_other():
    with pytest.raises(OptionError, match="--format json needs --schema"):
        ExportSettings("b", "t", target_in_nowhere(), "e", format="json")
    with pytest.raises(OptionError, match="are for formats that decode"):
        ExportSettings("b", "t", target_in_nowhere(), "e", evolve="add")


def target_in_nowhere():
    from lakemq.spark_plugin.export.tables.target import Target

    return Target("delta", "x")


NAMES = st.sampled_from(["a", "b", "A", "c", "_meta", "b c"])
TYPES = st.recursive(
    st.sampled_from(["string", "boolean", "bigint", "double"]).map(Type),
    lambda inner: (
        inner.map(lambda kind: Type("array", (("element", kind),)))
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(
            lambda fields: Type("struct", tuple(fields.items()))
        )
    ),
    max_leaves=5,
)
FIELDS = st.dictionaries(NAMES, TYPES, max_size=4)


def struct(**fields):
    return Type("struct", tuple((name, Type(kind)) for name, kind in fields.items()))


def test_a_field_is_not_hidden_by_one_whose_name_differs_in_case():
    columns = evolve((), {"s": Type("struct", (("a", struct(x="string")),))})
    found = merge_found(
        {"s": Type("struct", (("A", Type("string")),))},
        {"s": Type("struct", (("a", struct(x="string", y="bigint")),))},
    )
    ((_, kind),) = evolve(columns, found)
    assert kind.fields == (("a", struct(x="string", y="bigint")),)


@given(FIELDS, FIELDS, FIELDS)
@example({"a": struct(a="string")}, {"A": Type("string"), "a": struct(a="string", b="string")}, {})
def test_evolution_settles(columns, one, other):
    start = evolve((), columns)
    found = merge_found(merge_found({}, one), other)
    after = evolve(start, found)
    assert evolve(after, found) == after, "the same fields bring nothing new"
    assert evolve(after, one) == after
    assert [name for name, _ in after][: len(start)] == [name for name, _ in start]
    names = [name.lower() for name, _ in after]
    assert len(set(names)) == len(names) and META not in names
    if after:
        assert parse_schema(schema_text(after)) == after


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=8,
    )
)
def test_every_json_value_has_a_type_that_can_be_written(value):
    kind = type_of_value({"v": value})
    assert kind is None or parse_schema(schema_text(kind.fields)) == kind.fields
    assert "timestamp_ms" in SCALARS
