"""Exports routed by a field: names, columns, and the loop with a crash anywhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakemq.broker_core.api.types import Columns
from lakemq.spark_plugin.errors import ExportFenced, OptionError
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import audit_target, make_exporter, replay_target
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.maintenance.audit import all_complete
from lakemq.spark_plugin.export.routing.rules import (
    RouteBy,
    check_route_column,
    parse_route_by,
    route_name,
    route_values,
    routes_of,
)
from lakemq.spark_plugin.export.tables import table as lake
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.spark.lake_tables import FORMATS, places, read_table, routed_target_in

SCHEMA = "device string, n bigint"


def run_here(tasks):
    return [
        result for task in tasks for result in write_task.run(WriteTask.from_json(task.to_json()))
    ]


# -- what is a name


@pytest.mark.parametrize(
    "value",
    [
        None, "", ".", "..", "../x", "a/b", "/etc", "a\\b", "_routes", "_dead_letters", ".hidden",
        "a b", "a\0b", "a\n", "%2e%2e", "ünï", "x" * 101, b"\xff", b"../x", "{topic}", -5,
    ],
)  # fmt: skip
def test_what_could_lead_elsewhere_is_no_name(value):
    for kind in FORMATS:
        assert route_name(value, kind) is None


def test_names_are_made_of_text_numbers_and_dates():
    assert route_name("Air-sensor.v2", "delta") == "Air-sensor.v2"
    assert route_name("Air-sensor.v2", "iceberg") == "Air_sensor_v2"
    assert route_name(b"pump", "parquet") == "pump"
    assert [route_name(each, "delta") for each in (7, True)] == ["7", "true"]
    assert route_name(pa.scalar(0, pa.date32()).as_py(), "delta") == "1970-01-01"


def test_routes_are_found_in_columns():
    values = pa.array(["a", None, "b", "../c", "a", "a.b", "a-b"])
    codes, names = routes_of(values, "iceberg")
    assert [names[code] for code in codes] == ["a", None, "b", None, "a", "a_b", "a_b"]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        (pa.bool_(), [True, None, False], ["true", None, "false"]),
        (pa.int16(), [3, -3, None], ["3", None, None]),
        (pa.date32(), [0, None, 1], ["1970-01-01", None, "1970-01-02"]),
        (pa.binary(), [], []),
    ],
)
def test_columns_of_other_types_route_too(kind, values, names):
    codes, found = routes_of(pa.array(values, kind), "parquet")
    assert [found[code] for code in codes] == names


def test_the_first_header_of_a_name_routes_and_records_may_have_none():
    headers = pa.array(
        [
            [{"key": "x", "value": b"no"}, {"key": "kind", "value": b"a"}],
            [],
            None,
            [{"key": "kind", "value": b"b"}, {"key": "kind", "value": b"c"}],
            [{"key": "kind", "value": None}],
        ],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = pa.RecordBatch.from_arrays([headers], names=["headers"])
    every = pa.array(np.arange(5))
    by = parse_route_by("header:kind")
    assert route_values(by, batch, pa.table({}), every).to_pylist() == [
        b"a",
        None,
        None,
        b"b",
        None,
    ]
    part = batch.slice(3)
    assert route_values(by, part, pa.table({}), pa.array([0, 0, 1])).to_pylist() == [
        b"b",
        b"b",
        None,
    ]


def test_what_to_route_by_is_parsed():
    assert parse_route_by("key") == RouteBy("key")
    assert parse_route_by("column:key") == RouteBy("column", "key")
    assert parse_route_by("device.kind") == RouteBy("column", "device.kind")
    for text in ("a/b", "header:", "a b", "a..b"):
        with pytest.raises(OptionError, match="--route-by is"):
            parse_route_by(text)
    schema = pa.schema([("d", pa.struct([("kind", pa.string())])), ("price", pa.float64())])
    check_route_column("d.kind", schema)
    with pytest.raises(OptionError, match="unknown column d.nix"):
        check_route_column("d.nix", schema)
    with pytest.raises(OptionError, match="price is double"):
        check_route_column("price", schema)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"target": Target("delta", "lake")}, "needs a place for the route"),
        ({"route_default": "../x"}, "not a valid table name"),
        ({"route_default": "_routes"}, "not a valid table name"),
        ({"routes_max": 0}, "takes 1 to"),
        ({"routes_max": 10_000}, "takes 1 to"),
        ({"sql": "SELECT 1"}, "does not go with --sql: rows of a result do not say"),
        ({"format": "sparkplug", "value_schema": ""}, "several rows of a record"),
        ({"route_by": ""}, "are for exports with --route-by"),
    ],
)
def test_routings_that_cannot_be(more, problem):
    given = {"target": Target("delta", "lake/{route}"), "route_by": "device", **more}
    given = {"format": "json", "value_schema": SCHEMA, **given}
    with pytest.raises(OptionError, match=problem):
        ExportSettings("b", "t", export_id="e", **given)


# -- the loop


class Export:
    """Runs of one routed export, each as if in a new process."""

    def __init__(self, target, **settings):
        self.target = target
        self.settings = {
            "export_id": "e",
            "commit_rows": 40,
            "format": "json",
            "value_schema": SCHEMA,
            "route_by": "device",
            **settings,
        }

    def make(self, **more):
        settings = ExportSettings("memory", "t", self.target, **{**self.settings, **more})
        return make_exporter(settings, run_here)

    def run(self, **more):
        exporter = self.make(take_over=True, **more)
        try:
            exporter.start()
            return list(iter(exporter.step, None))
        finally:
            exporter.close()

    def rows(self, *names):
        return {name: places(read_table(self.target.of_route(name))) for name in names}

    def dead(self):
        return read_table(self.target.dead_letters("")).sort_by("offset").to_pylist()

    def audit(self):
        return audit_target("memory", "t", self.target, "e", "", by_key=True)


@pytest.fixture
def export(tmp_path):
    return Export(routed_target_in(tmp_path, "parquet"))


@pytest.fixture(params=FORMATS)
def each_export(request, tmp_path):
    return Export(routed_target_in(tmp_path, request.param))


def fill(memory, count=60, first=0):
    """Offset n of each partition is of device n % 3; every tenth names no table."""
    if not first:
        memory.create_topic("t", 2)
    for partition in range(2):
        numbers = range(first, first + count)
        memory.append("t", partition, Columns([value(n) for n in numbers]))


def value(n):
    device = "../../etc" if n % 10 == 9 else f"d{n % 3}"
    return b'{"device":"%s","n":%d}' % (device.encode(), n)


def expected(route, count=60):
    return [(p, n) for p in range(2) for n in range(count) if n % 10 != 9 and f"d{n % 3}" == route]


def all_expected(count=60):
    return {route: expected(route, count) for route in ("d0", "d1", "d2")}


@pytest.fixture
def audited(monkeypatch, memory):
    """The audit's own client is the journal in memory."""
    import contextlib

    from lakemq.spark_plugin.export.job import run

    monkeypatch.setattr(run, "connect", lambda *_: contextlib.nullcontext(memory))


def test_each_record_is_in_the_table_of_its_route(memory, each_export, audited):
    export = each_export
    fill(memory)
    reports = export.run()
    assert sum(report.rows for report in reports) == 108
    assert sum(report.dead_letters for report in reports) == 12
    assert export.rows("d0", "d1", "d2") == all_expected()
    dead = export.dead()
    assert {each["error_class"] for each in dead} == {"no_route"}
    assert dead[0]["error"].startswith("device is '../../etc': not a valid table name")
    assert export.run() == []
    fill(memory, 30, first=60)
    export.run(commit_rows=None)
    assert export.rows("d0", "d1", "d2") == all_expected(90)
    assert all_complete(export.audit())


def test_a_topic_of_nothing_but_bad_records_makes_no_table(memory, export):
    memory.create_topic("t")
    memory.append("t", 0, Columns([b"poison", None, b'{"n":1}', b'{"device":null}']))
    export.run()
    classes = [each["error_class"] for each in export.dead()]
    assert classes == ["not_json", "null_value", "no_route", "no_route"]
    memory.append("t", 0, Columns([b'{"device":"d1","n":1}']))
    export.run()
    assert export.rows("d1") == {"d1": [(0, 4)]}


def test_a_default_route_takes_what_names_no_table(memory, export):
    fill(memory)
    export.run(route_default="other", routes_max=3)
    nowhere = [(p, n) for p in range(2) for n in range(60) if n % 10 == 9]
    assert export.rows("other", "d0", "d1") == {
        "other": sorted(nowhere + expected("d2")),
        "d0": expected("d0"),
        "d1": expected("d1"),
    }
    assert export.dead() == []


def test_more_routes_than_allowed_are_dead_letters(memory, export):
    fill(memory)
    export.run(routes_max=2)
    assert export.rows("d0", "d1") == {"d0": expected("d0"), "d1": expected("d1")}
    assert len(export.dead()) == 12 + len(expected("d2"))


class Crash(Exception):
    pass


def crash_at(monkeypatch, number, after=False):
    """The commit of a table that is to be the `number`th (from 1) with files does not return."""
    from lakemq.spark_plugin.export.tables import table as lake

    commit, count = lake.commit, [0]

    def failing(table, key, files, *rest):
        count[0] += bool(files)
        if files and count[0] == number and not after:
            raise Crash
        commit(table, key, files, *rest)
        if files and count[0] == number:
            raise Crash

    monkeypatch.setattr(lake, "commit", failing)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(1, 8))
def test_a_crash_between_any_two_commits_neither_repeats_nor_loses(
    memory, export, audited, number, after
):
    """1: rule, 2: routes, 3: dead letters, 4 to 6: tables, 7: dead letters of the next one."""
    fill(memory)
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, number, after)
        with pytest.raises(Crash):
            export.run()
    fill(memory, 30, first=60)
    export.run(commit_rows=25)  # other ranges than those of the crashed commit
    assert export.rows("d0", "d1", "d2") == all_expected(90)
    assert len(export.dead()) == 18
    assert all_complete(export.audit())


def test_the_same_process_goes_on_after_a_failed_commit(memory, each_export):
    export = each_export
    fill(memory)
    exporter = export.make()
    exporter.start()
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 3, after=True)
        with pytest.raises(Crash):
            exporter.step()
    while exporter.step():
        pass
    exporter.close()
    assert export.rows("d0", "d1", "d2") == all_expected()


def test_tables_ahead_are_no_fault_to_the_audit_but_fix_the_rule(memory, export, audited):
    fill(memory)
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 5)
        with pytest.raises(Crash):
            export.run()
    assert sum(map(len, export.rows("d0", "d1").values())) > 0, "one table is ahead"
    found = export.audit()
    assert [each.next_offset for each in found] == [0, 0]
    assert not any(each.twice or each.missing for each in found)
    with pytest.raises(OptionError, match=r"run the export once as it was \(route_default ''\)"):
        export.run(route_default="other")
    export.run()
    export.run(route_default="other")
    assert export.rows("d0", "d1", "d2") == all_expected()


def test_tables_without_rows_are_not_committed(memory, export, monkeypatch):
    fill(memory)
    export.run(commit_rows=None)
    exporter = export.make(take_over=True)
    memory.append("t", 0, Columns([b'{"device":"d1","n":1}']))
    exporter.start()
    seen = []
    commit = lake.commit
    monkeypatch.setattr(
        lake, "commit", lambda table, *rest: (seen.append(table), commit(table, *rest))
    )
    assert exporter.step().rows == 1
    exporter.close()
    assert len(seen) == 2, "the table that got the row, and the ledger"


def test_a_process_that_was_taken_over_commits_to_no_table(memory, export):
    fill(memory)
    old = export.make()
    old.start()
    assert old.step()
    new = export.make(take_over=True)
    new.start()
    with pytest.raises(ExportFenced):
        old.step()
    while new.step():
        pass
    new.close()
    old.close()
    assert export.rows("d0", "d1", "d2") == all_expected()


def test_an_old_process_between_two_tables_is_fenced_by_each(memory, each_export, monkeypatch):
    export = each_export
    fill(memory)
    old, new = export.make(), export.make(take_over=True)
    old.start()
    assert old.step()
    commit, tables, started = lake.commit, old._landing.tables(), []

    def late(table, key, files, *rest):
        if files and table in tables and not started:
            started.append(True)
            new.start()
        commit(table, key, files, *rest)

    monkeypatch.setattr(lake, "commit", late)
    with pytest.raises(ExportFenced):
        old.step()
    while new.step():
        pass
    new.close()
    old.close()
    assert export.rows("d0", "d1", "d2") == all_expected()


def test_dead_letters_that_name_a_table_by_now_are_replayed_once(memory, each_export, audited):
    export = each_export
    fill(memory)
    export.run()
    settings = ExportSettings(
        "memory", "t", export.target, **{**export.settings, "route_default": "other"}
    )
    done = replay_target(settings)
    assert (done.landed, done.before, done.still_bad) == (12, 0, 0)
    again = replay_target(settings)
    assert (again.landed, again.before, again.still_bad) == (0, 12, 0)
    assert len(export.rows("other")["other"]) == 12
    assert export.rows("d0", "d1", "d2") == all_expected()
    assert all_complete(export.audit())


def test_raw_records_are_routed_by_key_and_compacted(memory, export):
    memory.create_topic("t")
    for _ in range(6):
        memory.append("t", 0, Columns([b"v"] * 4, [b"a", b"b", None, b"\xff"]))
    reports, compacted = [], []
    raw = {"format": "raw", "value_schema": "", "route_by": "key"}
    exporter = export.make(commit_rows=4, compact_files=2, **raw)
    exporter.start()
    while report := exporter.step():
        reports.append(report.rows)
        compacted.append(exporter.compact())
    exporter.close()
    assert any(compacted)
    assert sum(reports) == 12
    assert export.rows("a", "b") == {
        "a": [(0, n) for n in range(0, 24, 4)],
        "b": [(0, n) for n in range(1, 24, 4)],
    }
    assert len(export.dead()) == 12


def test_the_command_takes_a_routing(monkeypatch):
    from typer.testing import CliRunner

    from lakemq.spark_plugin.cli import commands

    given = []
    monkeypatch.setattr(commands, "_run", lambda settings, *_: given.append(settings))
    arguments = ["--topic", "t", "--to", "delta", "--path", "lake/{route}", "--route-by", "key"]
    more = ["--route-default", "other", "--routes-max", "7"]
    assert CliRunner().invoke(commands.export_app, [*arguments, *more]).exit_code == 0
    (settings,) = given
    assert (settings.route_by, settings.route_default, settings.routes_max) == ("key", "other", 7)
    assert settings.target.dead_letters("").path == "lake/_dead_letters"
