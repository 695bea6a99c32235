"""Goal: `lakemq export --sql` lands the result of a query over a commit's records, exactly once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from lakemq.spark_plugin.errors import ExportError, OptionError, TableError
from lakemq.spark_plugin.export.job import exporter as export_loop
from lakemq.spark_plugin.export.job.run import open_exporter, replay_target
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.maintenance.replay import Replayed
from tests.support.node.node import NodeProcess, unique
from tests.support.spark.lake_tables import FORMATS, data_paths, read_table, target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]
HOT = (
    "SELECT room, CAST(celsius AS decimal(6,2)) AS celsius, time, _meta.offset AS number, "
    "named_struct('n', n, 'all', array(n)) AS more FROM records WHERE celsius > 20"
)
SCHEMA = "room string, celsius double, n int, time timestamp_ms"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("sql")) as node:
        yield node


def send(client, topic, count, first=0):
    values = [
        b'{"room":"r%d","celsius":%d,"n":%d,"time":1700000000000}' % (n % 3, n % 40, n)
        for n in range(first, first + count)
    ]
    client.send_batch(topic, lakemq.Columns(values), partition=0)


def run(spark, settings):
    exporter = open_exporter(spark, settings)
    try:
        exporter.start()
        return list(iter(exporter.step, None))
    finally:
        exporter.close()


def hot(count):
    return sorted(n for n in range(count) if n % 40 > 20)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_query_lands_once_in_every_format(spark, node, client, kind, tmp_path: Path, monkeypatch):
    topic = f"sql-{kind}"
    client.create_topic(topic, partitions=1)
    send(client, topic, 200)
    settings = ExportSettings(
        node.native, topic, target_in(tmp_path, kind), "e", format="json", value_schema=SCHEMA,
        sql=HOT, commit_rows=150, partition_by="room",
    )  # fmt: skip
    first, second = run(spark, settings)
    assert (first.offset_count, second.offset_count) == (150, 50)
    rows = read_table(settings.target)
    assert sorted(rows["number"].to_pylist()) == hot(200)
    assert str(rows.schema.field("celsius").type) == "decimal128(6, 2)"
    assert rows.to_pylist()[0]["more"]["all"] == [rows.to_pylist()[0]["more"]["n"]]

    class Crash(Exception):
        pass

    commit = export_loop.lake.commit

    def crash(moment):
        def crashing(table, key, files, *rest):
            if files and moment == "before":
                raise Crash
            commit(table, key, files, *rest)
            if files:
                raise Crash

        return crashing

    send(client, topic, 100, first=200)
    for moment in ("before", "after"):
        monkeypatch.setattr(export_loop.lake, "commit", crash(moment))
        with pytest.raises(Crash):
            run(spark, settings)
    monkeypatch.setattr(export_loop.lake, "commit", commit)
    assert run(spark, settings) == []
    assert sorted(read_table(settings.target)["number"].to_pylist()) == hot(300)
    assert not [path for path in data_paths(settings.target) if "staged" in str(path)]


def test_a_query_may_join_group_and_leave_nothing(spark, node, client, tmp_path: Path):
    client.create_topic("groups", partitions=2)
    send(client, "groups", 30)
    client.send("groups", b"poison", partition=1)
    settings = ExportSettings(
        node.native,
        "groups",
        target_in(tmp_path, "delta"),
        "e",
        format="json",
        value_schema=SCHEMA,
        sql="SELECT a.room, count(*) AS pairs FROM records a JOIN records b USING (room) "
        "GROUP BY a.room HAVING max(a.n) >= 0",
    )
    (report,) = run(spark, settings)
    assert (report.rows, report.dead_letters, report.offset_count) == (3, 1, 31)
    rows = read_table(settings.target)
    assert sorted(zip(*(rows[name].to_pylist() for name in rows.schema.names), strict=True)) == [
        ("r0", 100),
        ("r1", 100),
        ("r2", 100),
    ]
    client.send("groups", b"poison again", partition=1)
    (report,) = run(spark, settings)
    assert (report.rows, report.dead_letters) == (0, 1), "no record, so no row, but offsets move"
    assert run(spark, settings) == []


@pytest.mark.parametrize("kind", FORMATS)
def test_dead_letters_land_through_the_query(
    spark, node, client, kind, tmp_path: Path, monkeypatch
):
    topic = f"letters-{kind}"
    client.create_topic(topic, partitions=1)
    values = [b'{"n":%d,"all":[1,2]}' % n for n in range(6)]
    late = [b'{"n":"7","all":[1,2]}', b'{"n":"8","all":[]}', b'{"n":"-9","all":[1]}', b"no"]
    client.send_batch(topic, lakemq.Columns(values + late), partition=0)
    settings = ExportSettings(
        node.native,
        topic,
        target_in(tmp_path, kind),
        "e",
        format="json",
        value_schema="n bigint, all array<int>",
        sql="SELECT _meta, CAST(n AS int) AS n, explode(all) AS one FROM records WHERE n >= 0",
    )
    run(spark, settings)
    better = dataclasses.replace(settings, value_schema="n decimal(9,0), all array<int>")
    with monkeypatch.context() as patch:
        commit = export_loop.lake.commit

        def landed_and_crashed(table, key, files, *rest):
            commit(table, key, files, *rest)
            if files:
                raise KeyboardInterrupt

        patch.setattr(export_loop.lake, "commit", landed_and_crashed)
        with pytest.raises(KeyboardInterrupt):
            replay_target(better, spark)
    assert replay_target(better, spark) == Replayed(0, before=1, still_bad=1, left_out=2)
    rows = read_table(settings.target)
    found = sorted(zip(rows["n"].to_pylist(), rows["one"].to_pylist(), strict=True))
    assert found == [(n, one) for n in (0, 1, 2, 3, 4, 5, 7) for one in (1, 2)]
    assert not [path for path in data_paths(settings.target) if "staged" in str(path)]


def test_letters_of_a_query_that_drops_where_rows_came_from_stay(spark, node, client, tmp_path):
    client.create_topic("anonymous", partitions=1)
    client.send("anonymous", b'{"n":"1"}')
    settings = ExportSettings(
        node.native,
        "anonymous",
        target_in(tmp_path, "delta"),
        "e",
        format="json",
        value_schema="n int",
        sql="SELECT n FROM records",
    )
    run(spark, settings)
    with pytest.raises(TableError, match="does not say which records its rows came from"):
        replay_target(dataclasses.replace(settings, value_schema="n decimal(9,0)"), spark)
    with pytest.raises(OptionError, match="made by a query: give it as --sql"):
        replay_target(dataclasses.replace(settings, sql=""))


def test_raw_records_can_be_queried(spark, node, client, tmp_path: Path):
    client.create_topic("plain", partitions=1)
    send(client, "plain", 10)
    settings = ExportSettings(
        node.native,
        "plain",
        target_in(tmp_path, "delta"),
        "e",
        sql="SELECT offset, from_json(decode(value, 'utf-8'), 'n int').n AS n FROM records",
    )
    run(spark, settings)
    rows = read_table(settings.target).sort_by("offset").to_pylist()
    assert rows == [{"offset": n, "n": n} for n in range(10)]


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT nix FROM records", "--sql: .*nix"),
        ("SELEKT", "--sql: "),
        ("SELECT n, n FROM records", "two columns n"),
        ("SELECT NULL AS nothing FROM records", "column nothing has no type"),
    ],
)
def test_a_query_that_cannot_be_is_one_sentence(spark, node, client, tmp_path, sql, problem):
    topic = unique("any")
    client.create_topic(topic, partitions=1)
    settings = ExportSettings(
        node.native,
        topic,
        target_in(tmp_path, "delta"),
        "e",
        format="json",
        value_schema="n int",
        sql=sql,
    )
    with pytest.raises(OptionError, match=problem) as raised:
        open_exporter(spark, settings)
    assert "\n" not in str(raised.value)


def test_a_query_that_fails_on_the_way_changes_nothing(spark, node, client, tmp_path: Path):
    client.create_topic("fails", partitions=1)
    send(client, "fails", 3)
    settings = ExportSettings(
        node.native,
        "fails",
        target_in(tmp_path, "delta"),
        "e",
        format="json",
        value_schema="room string",
        sql="SELECT CAST(room AS int) AS room FROM records",
    )
    with pytest.raises(ExportError, match="CAST_INVALID_INPUT"):
        run(spark, settings)
    assert read_table(settings.target).num_rows == 0
