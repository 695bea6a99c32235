"""Goal: the recipes of docs/lakehouse.md do what they say, with their own commands.

Every command starts a JVM, so by default only the last recipe is run, all of them with
LAKEMQ_SPARK_CLUSTER=1.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

import lakemq
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.node.node import NodeProcess
from tests.support.spark.lake_tables import read_table

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "lakehouse.md").read_text()
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
LONG = pytest.mark.skipif(
    not os.environ.get("LAKEMQ_SPARK_CLUSTER"), reason="set LAKEMQ_SPARK_CLUSTER=1"
)
READINGS = [("air/kitchen", 21.5), ("air/oven", 180.0), ("air/hall", 31.0), ("air/cellar", 12.0)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("recipes")) as node:
        client = connected(node)
        for name, celsius in READINGS:
            client.publish(name, json.dumps({"celsius": celsius}), qos=1).wait_for_publish(10)
        client.disconnect()
        client.loop_stop()
        yield node


def connected(node: NodeProcess) -> mqtt.Client:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", node.mqtt_port)
    client.loop_start()
    return client


def recipe(title: str, node: NodeProcess, folder: Path) -> str:
    """Run the commands of a recipe, at this node and in this folder; what they print."""
    text = PAGE[PAGE.index(f"### {title}") :]
    block = re.search(r"```console\n(.*?)```", text, re.DOTALL)
    assert block is not None
    printed = ""
    for line in block[1].splitlines():
        command = shlex.split(line.removeprefix("$ ").replace("/data/", f"{folder}/"))
        assert command[0] in ("lakemq", "python"), line
        run = [sys.executable, "-m", "lakemq"] if command[0] == "lakemq" else [sys.executable]
        done = subprocess.run(
            [*run, *command[1:], "--bootstrap", node.native],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed += done.stdout
    return printed


@LONG
def test_mqtt_to_delta_with_sql(node: NodeProcess, tmp_path: Path) -> None:
    recipe("MQTT to Delta with SQL", node, tmp_path)
    rows = read_table(Target("delta", str(tmp_path / "hot"))).to_pylist()
    assert sorted((row["room"], row["celsius"]) for row in rows) == [
        ("hall", 31.0),
        ("oven", 180.0),
    ]


@LONG
def test_replay_a_topic_into_iceberg(node: NodeProcess, tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    printed = recipe("Replay a topic into Iceberg", node, tmp_path)
    assert "mqtt-0: complete up to offset" in printed
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    rows = read_table(Target("iceberg", table="lake.history", catalog=catalog)).to_pylist()
    assert {(row["key"].decode(), json.loads(row["value"])["celsius"]) for row in rows} >= set(
        READINGS
    )


def test_spark_to_mqtt_alerts(node: NodeProcess, tmp_path: Path) -> None:
    client = connected(node)
    got: dict[str, float] = {}
    subscribed, complete = threading.Event(), threading.Event()

    def take(_client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        got[message.topic] = json.loads(message.payload)["celsius"]
        if len(got) == 2:
            complete.set()

    client.on_message = take
    client.on_subscribe = lambda *_: subscribed.set()
    client.subscribe("alerts/#", qos=1)
    assert subscribed.wait(10)
    recipe("Spark to MQTT alerts", node, tmp_path)
    assert complete.wait(10), got
    assert got == {"alerts/oven": 180.0, "alerts/hall": 31.0}
    client.disconnect()
    client.loop_stop()
    with lakemq.connect(node.native) as sdk:
        keys = [record.key for record in sdk.consume("mqtt")]
    assert keys.count(b"alerts/oven") == 1
