"""Goal: a topic of a real node is routed into many tables by real Spark tasks, each record once."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import lakemq
from lakemq.spark_plugin.cli.commands import dlq_app, export_app
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from tests.support.node.node import NodeProcess
from tests.support.spark.lake_tables import places, read_table, routed_target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]


def send(node: NodeProcess, topic: str) -> None:
    """Of each partition, offset n is of device n % 4; device 3 names no table."""
    names = ("pump", "fan", "air-sensor", "../../outside")
    with lakemq.connect(node.native, timeout_s=10) as client:
        client.create_topic(topic, partitions=2)
        for partition in range(2):
            values = [b'{"n":%d,"device":"%s"}' % (n, names[n % 4].encode()) for n in range(400)]
            keys = [names[n % 4].encode() for n in range(400)]
            client.send_batch(topic, lakemq.Columns(values, keys), partition=partition)


def every_fourth(first: int) -> list[tuple[int, int]]:
    return [(p, n) for p in range(2) for n in range(first, 400, 4)]


def said_by(app: typer.Typer, *arguments: str) -> str:
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    return answer.output


def run(spark, settings: ExportSettings) -> int:
    exporter = open_exporter(spark, settings)
    try:
        exporter.start()
        return sum(report.rows for report in iter(exporter.step, None))
    finally:
        exporter.close()


def test_delta_tables_are_audited_replayed_and_vacuumed(
    spark, node: NodeProcess, tmp_path: Path
) -> None:
    send(node, "devices")
    target = routed_target_in(tmp_path / "lake", "delta")
    schema = "n bigint, device string"
    settings = ExportSettings(
        node.native,
        "devices",
        target,
        "devices",
        commit_rows=500,
        format="json",
        value_schema=schema,
        route_by="device",
    )
    assert run(spark, settings) == 600
    for number, name in enumerate(("pump", "fan", "air-sensor")):
        rows = read_table(target.of_route(name))
        assert places(rows) == every_fourth(number)
        assert set(rows["device"].to_pylist()) == {name}
    assert {each.name for each in tmp_path.iterdir()} == {"lake"}, "nothing lies outside"

    where = ["--to", "delta", "--path", target.path]
    topic = ["--topic", "devices", "--bootstrap", node.native, *where]
    routing = ["--format", "json", "--schema", schema, "--route-by", "device"]
    audit = said_by(export_app, "audit", *topic, "--keys")
    for partition in range(2):
        assert f"devices-{partition}: complete up to offset 399 (400 records" in audit
    said = said_by(dlq_app, "replay", *topic, *routing, "--route-default", "other")
    assert "200 dead letters written, 0 were written before, 0 still cannot be decoded" in said
    other = read_table(target.of_route("other"))
    assert places(other) == every_fourth(3)
    assert "complete up to offset 399" in said_by(export_app, "audit", *topic)
    assert "files deleted" in said_by(export_app, "vacuum", *where)


def test_keys_route_into_iceberg(spark, node: NodeProcess, tmp_path: Path) -> None:
    send(node, "by-key")
    target = routed_target_in(tmp_path, "iceberg")
    settings = ExportSettings(
        node.native, "by-key", target, "e", commit_rows=500, route_by="key", route_default="other"
    )
    assert run(spark, settings) == 800
    assert run(spark, settings) == 0
    for number, name in enumerate(("pump", "fan", "air_sensor", "other")):
        assert places(read_table(target.of_route(name))) == every_fourth(number)
