"""Goal: `lakemq explain` goes on into the table that an export wrote, and from a row back to the
device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from typer.testing import CliRunner

from lakemq.cli.commands import app
from lakemq.spark_plugin.export.job.run import open_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.spark.lake_tables import target_in
from tests.support.spark.session import PYSPARK_WARNINGS, spark_fixture  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    *(pytest.mark.filterwarnings(each) for each in PYSPARK_WARNINGS),
]
CONFIG = PORTS_FREE + '[[plugins.mqtt.bindings]]\nfilter = "air/#"\ntopic = "readings"\n'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node", CONFIG) as started:
        yield started


def publish(node: NodeProcess, client_id: str, name: str, *values: bytes) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id)
    client.connect("127.0.0.1", node.mqtt_port)
    client.loop_start()
    for value in values:
        client.publish(name, value, 1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()


def explained(node: NodeProcess, *arguments: str) -> list[dict[str, Any]]:
    given = ["explain", *arguments, "--json", "--admin", node.addresses["admin"]]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["messages"]
    return found


def test_from_the_device_to_the_table_and_back(spark, broker, tmp_path: Path):
    target = target_in(tmp_path, "delta")
    table = ("--to", "delta", "--path", target.path)
    publish(broker, "device-7", "air/co", b'{"co": 4.5}', b"no json")
    settings = ExportSettings(
        broker.native, "readings", target, "readings", format="json", value_schema="co double"
    )
    exporter = open_exporter(spark, settings)
    try:
        exporter.start()
        while exporter.step():
            pass
    finally:
        exporter.close()
    publish(broker, "device-7", "air/co", b'{"co": 5.5}')

    asked = ("--topic-name", "air/co", "--client", "device-7")
    row, dead, later = (each["stations"][-1] for each in explained(broker, *asked, *table))
    assert [each["station"] for each in (row, dead, later)] == ["table"] * 3
    assert row["state"] == "ok"
    assert "row 0 of" in row["what"] and "added by version" in row["what"]
    assert dead["state"] == "failed"
    assert "dead letter (not_json" in dead["what"]
    assert later["state"] == "waiting"
    assert "not in the table yet; export readings goes on at offset" in later["what"]

    (back,) = explained(broker, "--where", "co = 4.5", *table)
    assert back["client_id"] == "device-7"
    assert back["stations"][-1] == row
    wrong = CliRunner().invoke(
        app, ["explain", "--where", "no2 = 1", *table, "--admin", broker.addresses["admin"]]
    )
    assert (wrong.exit_code, "no column 'no2'" in wrong.output) == (2, True)
