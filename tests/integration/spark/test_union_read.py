"""Goal: `lakemq.read` gives what a table has and what only the journal has, each record once."""

from __future__ import annotations

import os
import re
import runpy
import sys
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import lakemq
from examples.air_quality.readings import MISSING, parse, payload, topic_name
from lakemq.broker_core.api.schemas.sparkplug import Payload
from lakemq.spark_plugin.errors import DataLossError, OptionError, TableError
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.spark.lake_tables import FORMATS, places, target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

ALL = bool(os.environ.get("LAKEMQ_EXPORT_KILLS"))
ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "lakehouse.md"
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]


def send(client, topic, first, end):
    for partition in range(2):
        values = [b'{"n":%d,"room":"r%d"}' % (n, partition) for n in range(first, end)]
        client.send_batch(topic, lakemq.Columns(values), partition=partition)


def export(spark, settings):
    exporter = open_exporter(spark, settings)
    try:
        exporter.start()
        while exporter.step():
            pass
    finally:
        exporter.close()


def read(node, topic, target: Target, **more):
    return lakemq.read(
        topic, bootstrap=node.native, to=target.format, path=target.path, table=target.table,
        catalog=target.catalog, export_id="e", **more,
    )  # fmt: skip


def expected(end):
    return [(partition, n) for partition in range(2) for n in range(end)]


@pytest.mark.parametrize("kind", FORMATS)
def test_each_record_comes_once_wherever_it_is(spark, node, client, kind, tmp_path: Path):
    topic = f"union-{kind}"
    client.create_topic(topic, partitions=2)
    send(client, topic, 0, 300)
    target = target_in(tmp_path, kind)
    export(spark, ExportSettings(node.native, topic, target, "e"))
    send(client, topic, 300, 450)
    found = read(node, topic, target)
    assert (found.begins, found.ends) == ({0: 300, 1: 300}, {0: 450, 1: 450})

    # What comes later is not in it, and neither is what is exported meanwhile there twice.
    send(client, topic, 450, 500)
    export(spark, ExportSettings(node.native, topic, target, "e"))
    assert places(pa.table(found)) == expected(450)
    rows = duckdb.sql("SELECT count(*), count(DISTINCT value) FROM found").fetchall()
    assert rows == [(900, 900)]
    assert places(read(node, topic, target).to_spark(spark).toArrow()) == expected(500)
    few = pa.table(read(node, topic, target, columns=["offset", "value"]))
    assert few.schema.names == ["offset", "value"] and few.num_rows == 1000


@pytest.mark.parametrize("kind", FORMATS if ALL else ["delta"])
def test_values_have_the_columns_that_the_export_gave_them(spark, node, client, kind, tmp_path):
    topic = f"union-json-{kind}"
    client.create_topic(topic, partitions=2)
    send(client, topic, 0, 100)
    target = target_in(tmp_path, kind)
    by = "room, day(_meta.timestamp)"
    settings = ExportSettings(
        node.native, topic, target, "e", format="json", value_schema="n bigint, room string",
        partition_by=by,
    )  # fmt: skip
    export(spark, settings)
    send(client, topic, 100, 150)
    client.send(topic, b"no JSON", partition=0)  # an export leaves it to the dead letters
    found = read(node, topic, target, format="json")
    both = (pa.table(found), found.to_spark(spark).toArrow())
    for rows in both:
        assert rows.schema.names == ["n", "room", "_meta"]
        assert places(rows) == expected(150)
        pairs = zip(rows["n"].to_pylist(), rows["room"].to_pylist(), strict=True)
        assert sorted(pairs) == sorted((n, f"r{p}") for p, n in expected(150))


def test_sparkplug_metrics_have_the_names_of_their_births(spark, node, client, tmp_path):
    """Of births in the table, in other tasks' ranges, and in the journal."""
    client.create_topic("union-sparkplug", partitions=1)

    def publish(kind, **metric):
        value = Payload(metrics=[metric]).SerializeToString()
        client.send("union-sparkplug", value, key=f"spBv1.0/g/{kind}/n".encode())

    target = target_in(tmp_path, "delta")
    settings = ExportSettings(
        node.native, "union-sparkplug", target, "e", format="sparkplug", commit_rows=3
    )
    publish("NBIRTH", name="load", alias=1, datatype=3, int_value=0)
    for number in range(4):
        publish("NDATA", alias=1, int_value=(2**32 - number) % 2**32)
    export(spark, settings)
    publish("NDATA", alias=1, int_value=2**32 - 4)
    publish("NBIRTH", name="fan", alias=1, datatype=3, int_value=0)
    publish("NDATA", alias=1, int_value=2**32 - 5)
    found = read(node, "union-sparkplug", target, format="sparkplug")
    for rows in (pa.table(found), found.to_spark(spark).toArrow()):
        rows = sorted(rows.to_pylist(), key=lambda row: row["_meta"]["offset"])
        assert [(row["metric"], row["long_value"]) for row in rows] == [
            ("load", 0), ("load", 0), ("load", -1), ("load", -2), ("load", -3), ("load", -4),
            ("fan", 0), ("fan", -5),
        ]  # fmt: skip


def test_all_of_it_is_in_the_table(spark, node, client, tmp_path):
    client.create_topic("landed", partitions=2)
    send(client, "landed", 0, 10)
    target = target_in(tmp_path, "delta")
    export(spark, ExportSettings(node.native, "landed", target, "e"))
    found = read(node, "landed", target)
    assert places(pa.table(found)) == places(found.to_spark(spark).toArrow()) == expected(10)


def test_what_can_not_be_read_as_one_is_told(spark, node, client, tmp_path):
    client.create_topic("told", partitions=2)
    send(client, "told", 0, 10)
    target = target_in(tmp_path, "delta")
    export(spark, ExportSettings(node.native, "told", target, "e"))
    with pytest.raises(OptionError, match="'ofset'; did you mean offset"):
        read(node, "told", target, columns=["ofset"])
    with pytest.raises(OptionError, match="no json export made it"):
        read(node, "told", target, format="json")
    with pytest.raises(TableError, match="export told of topic told has committed nothing to"):
        lakemq.read("told", bootstrap=node.native, path=target.path)
    with pytest.raises(lakemq.UnknownTopic):
        read(node, "tolt", target)
    send(client, "told", 10, 20)
    client.admin.delete_records("told", {0: 15})
    with pytest.raises(DataLossError, match="told-0: offsets 10 to 14 are gone from the journal"):
        read(node, "told", target)


def test_the_guide_is_right(spark, node, client, tmp_path, capsys):
    chapter = GUIDE.read_text().partition("### Table and journal as one")[2]
    block = re.search("```python\n(.*?)```", chapter, re.DOTALL)
    assert block is not None
    topic = "union-guide"
    client.create_topic(topic, partitions=2)
    send(client, topic, 0, 10)
    target = target_in(tmp_path, "delta")
    settings = ExportSettings(
        node.native, topic, target, topic, format="json", value_schema="n bigint, room string"
    )
    export(spark, settings)
    send(client, topic, 10, 12)
    told = block[1].replace("127.0.0.1:9700", node.native).replace("lake/air", target.path)
    told = told.replace('"air"', f'"{topic}"')
    exec(compile(told, str(GUIDE), "exec"), {})
    printed = capsys.readouterr().out
    assert "{0: 10, 1: 10} {0: 12, 1: 12}" in printed and "24" in printed


def test_the_notebook_goes_from_connect_to_a_picture(
    spark, node, client, tmp_path: Path, monkeypatch, capsys
):
    """On the readings of the demo: part of them in a table, the rest only in the journal."""
    with (ROOT / "examples/air_quality/AirQualityUCI.csv").open() as lines:
        given = [each for _, each in zip(range(150), lines, strict=False)]
    sensors = parse(given)
    topic = "notebook"
    client.create_topic(topic, partitions=2)
    target = target_in(tmp_path, "delta")
    for first, end in ((0, 100), (100, 200)):
        client.send_batch(topic, [
            lakemq.NewRecord(payload(each), key=topic_name(sensor).encode())
            for sensor, all_of in sensors.items() for each in all_of[first:end]
        ])  # fmt: skip
        if not first:
            export(spark, ExportSettings(node.native, topic, target, topic))
    picture = tmp_path / "hours.png"
    # Here and not in a process of its own, which would load pandas and pyarrow again.
    monkeypatch.setattr(sys, "argv", ["notebook.py", node.native, target.path, str(picture)])
    notebook = tmp_path / "notebook.py"
    notebook.write_text(
        (ROOT / "examples/notebook.py").read_text().replace('("air"', f'("{topic}"')
    )
    shown = runpy.run_path(str(notebook))["hours"]
    said = capsys.readouterr().out
    hours: dict[str, list[Decimal]] = {}
    for each in sensors["co_gt"]:
        if each.value != MISSING:
            hours.setdefault(each.time[11:13], []).append(each.value)
    means = {hour: sum(values) / len(values) for hour, values in hours.items()}
    assert shown.to_dict() == pytest.approx(
        {int(hour): float(mean) for hour, mean in means.items()}
    )
    worst = max(means, key=lambda hour: means[hour])
    records = sum(map(len, sensors.values()))
    assert said.splitlines() == [
        f"{records} records",
        f"worst at {int(worst)} o'clock: {means[worst]:.2f} mg/m³ in the mean",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len((ROOT / "examples/notebook.py").read_text().splitlines()) < 30
