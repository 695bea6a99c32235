"""Routed exports whose tables evolve, each by its own records, with a crash anywhere."""

from __future__ import annotations

import contextlib
import json

import pytest

from lakemq.spark_plugin.errors import OptionError
from lakemq.spark_plugin.export.decoding.column_types import META
from lakemq.spark_plugin.export.job import run as run_module
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import audit_target, make_exporter, replay_target
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance.audit import all_complete
from lakemq.spark_plugin.export.tables import table as lake
from tests.support.spark.lake_tables import FORMATS, places, read_table, routed_target_in


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


@pytest.fixture
def target(tmp_path):
    return routed_target_in(tmp_path, "parquet")


def settings(target, **more):
    given = {
        "export_id": "e",
        "commit_rows": 40,
        "format": "json",
        "value_schema": "device string",
        "route_by": "device",
        "evolve": "add",
        "take_over": True,
        **more,
    }
    return ExportSettings("memory", "t", target, **given)


def export(target, **more):
    exporter = make_exporter(settings(target, **more), run_here)
    try:
        exporter.start()
        return list(iter(exporter.step, None))
    finally:
        exporter.close()


def send(memory, *values, partition=0, keys=None):
    if "t" not in memory._ids:
        memory.create_topic("t", 2)
    from lakemq.broker_core.api.types import Columns

    columns = Columns([json.dumps(value).encode() for value in values], keys)
    memory.append("t", partition, columns)


def rows(target, route):
    """Rows by (partition, offset), without `_meta`."""
    found = {}
    for row in read_table(target.of_route(route)).to_pylist():
        meta = row.pop(META)
        assert (meta["partition"], meta["offset"]) not in found
        found[meta["partition"], meta["offset"]] = row
    return found


@pytest.mark.parametrize("kind", FORMATS)
def test_each_table_evolves_by_its_own_records(memory, tmp_path, kind):
    target = routed_target_in(tmp_path, kind)
    send(memory, {"device": "a", "n": 1}, {"device": "b", "n": "text", "in": {"x": 1}})
    export(target)
    send(memory, {"device": "b", "in": {"y": True}}, {"device": "a"}, {"device": "c"}, partition=1)
    export(target)
    assert rows(target, "a") == {
        (0, 0): {"device": "a", "n": 1},
        (1, 1): {"device": "a", "n": None},
    }
    assert rows(target, "b") == {
        (0, 1): {"device": "b", "n": "text", "in": {"x": 1, "y": None}},
        (1, 0): {"device": "b", "n": None, "in": {"x": None, "y": True}},
    }
    assert rows(target, "c") == {(1, 2): {"device": "c"}}


def test_types_grow_also_of_the_column_that_routes(memory, target):
    send(memory, {"id": 1, "n": 1}, {"id": 2, "n": 300})
    export(target, value_schema="id tinyint, n tinyint", route_by="id", evolve="widen")
    send(memory, {"id": 1, "n": 1 << 40}, {"id": 4000, "n": 1})
    export(target, value_schema="id tinyint, n tinyint", route_by="id", evolve="widen")
    assert rows(target, "1") == {(0, 0): {"id": 1, "n": 1}, (0, 2): {"id": 1, "n": 1 << 40}}
    assert rows(target, "2") == {(0, 1): {"id": 2, "n": 300}}
    assert rows(target, "4000") == {(0, 3): {"id": 4000, "n": 1}}
    kinds = [str(read_table(target.of_route(each)).schema.field("n").type) for each in "12"]
    assert kinds == ["int64", "int16"]


def test_columns_may_come_from_the_records_alone_where_keys_route(memory, target):
    send(memory, {"x": 1}, {"y": "z"}, keys=[b"a", b"b"])
    export(target, value_schema="", route_by="key")
    assert rows(target, "a") == {(0, 0): {"x": 1}}
    assert rows(target, "b") == {(0, 1): {"y": "z"}}


def test_a_column_that_routes_has_to_be_given(memory, target):
    with pytest.raises(OptionError, match="unknown column device"):
        export(target, value_schema="n bigint")


def fill(memory, first, count=30):
    """Offset n is of device n % 3, every tenth is bad; fields come as n grows."""
    for partition in range(2):
        values = []
        for n in range(first, first + count):
            value = {"device": f"d{n % 3}", f"f{n // 20}": n, "in": {f"g{n // 15}": n}}
            values.append("poison" if n % 10 == 9 else value)
        send(memory, *values, partition=partition)


def check(target, count):
    for route in range(3):
        mine = [n for n in range(count) if n % 10 != 9 and n % 3 == route]
        found = rows(target, f"d{route}")
        assert sorted(found) == [(p, n) for p in range(2) for n in mine]
        for (_, n), row in found.items():
            filled = {name: value for name, value in row.items() if value is not None}
            inner = {name: value for name, value in filled.pop("in").items() if value is not None}
            assert filled == {"device": f"d{route}", f"f{n // 20}": n}
            assert inner == {f"g{n // 15}": n}
    dead = places(read_table(target.dead_letters("")))
    assert dead == [(p, n) for p in range(2) for n in range(9, count, 10)]


class Crash(Exception):
    pass


@pytest.mark.parametrize("number", range(1, 9))
def test_a_crash_between_any_two_changes_neither_repeats_nor_loses(
    memory, target, monkeypatch, number
):
    """Commits with files and changes of columns, in their order, are what can be cut short."""
    fill(memory, 0)
    with pytest.MonkeyPatch.context() as patch:
        commit, count = lake.commit, [0]
        from lakemq.spark_plugin.export.tables.parquet_table import ParquetTable

        add_columns = ParquetTable.add_columns

        def step():
            count[0] += 1
            if count[0] == number:
                raise Crash

        def commit_and_crash(table, key, files, *rest):
            commit(table, key, files, *rest)
            if files:
                step()

        def add_and_crash(table, schema):
            add_columns(table, schema)
            step()

        patch.setattr(lake, "commit", commit_and_crash)
        patch.setattr(ParquetTable, "add_columns", add_and_crash)
        with pytest.raises(Crash):
            export(target)
    fill(memory, 30)
    export(target, commit_rows=25)
    check(target, 60)
    monkeypatch.setattr(run_module, "connect", lambda *_: contextlib.nullcontext(memory))
    assert all_complete(audit_target("memory", "t", target, "e", "", by_key=True))


def test_letters_land_in_the_columns_that_their_table_has_by_now(memory, target):
    send(memory, {"device": "a", "n": 1}, {"device": "../x", "n": 2}, {"device": "b", "m": 1})
    export(target)
    done = replay_target(settings(target, route_default="b"))
    assert (done.landed, done.before, done.still_bad) == (1, 0, 0)
    assert rows(target, "b") == {
        (0, 1): {"device": "../x", "m": None},
        (0, 2): {"device": "b", "m": 1},
    }
    assert replay_target(settings(target, route_default="b")).before == 1
