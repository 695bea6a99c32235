"""Goal: what an edge node publishes comes to a table with the names of its metrics, and its births
are there for hosts that come later, also behind a restart of the broker."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest

from lakemq.broker_core.api.schemas.sparkplug import Payload
from lakemq.spark_plugin.export.job import write_task
from lakemq.spark_plugin.export.job.run import make_exporter
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.job.task_results import TaskResult
from lakemq.spark_plugin.export.job.write_task import WriteTask
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.node.node import PORTS_FREE, NodeProcess
from tests.support.spark.lake_tables import read_table, target_in

CONFIG = (
    PORTS_FREE.replace("[plugins.mqtt]\n", "[plugins.mqtt]\nsparkplug_aware = true\n")
    + """
[[plugins.mqtt.bindings]]
filter = "spBv1.0/#"
topic = "sparkplug"
key = "client_id"
qos0 = true
partitions = 3
"""
)
NODE = "spBv1.0/plant/{}/edge7"
CERTIFICATE = "$sparkplug/certificates/" + NODE.format("NBIRTH")
WAIT_S = 60


def birth(*names: str) -> bytes:
    payload = Payload(seq=0)
    for alias, name in enumerate(names):
        payload.metrics.add(name=name, alias=alias, datatype=3, int_value=0)
    return bytes(payload.SerializeToString())


def data(alias: int, value: int) -> bytes:
    payload = Payload(seq=1)
    payload.metrics.add(alias=alias, int_value=value % 2**32)
    return bytes(payload.SerializeToString())


@contextmanager
def client(node: NodeProcess, name: str) -> Iterator[paho.Client]:
    made = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name)
    made.connect("127.0.0.1", node.mqtt_port)
    made.loop_start()
    try:
        yield made
    finally:
        made.disconnect()
        made.loop_stop()


def publish(node: NodeProcess, client_id: str, messages: Sequence[tuple[str, bytes]]) -> None:
    """Births at QoS 0, as the specification has it; the last one at QoS 1: with its answer all are
    stored."""
    with client(node, client_id) as edge:
        for name, payload in messages[:-1]:
            edge.publish(name, payload, qos=0)
        name, payload = messages[-1]
        edge.publish(name, payload, qos=1).wait_for_publish(WAIT_S)


def certificate(node: NodeProcess) -> bytes:
    """What a host that comes now is told."""
    told: queue.Queue[bytes] = queue.Queue()
    with client(node, "host") as host:
        host.on_message = lambda _c, _u, message: told.put(message.payload)
        host.subscribe(CERTIFICATE, 1)
        found = told.get(timeout=WAIT_S)
        host.on_message = None
    return found


def export(node: NodeProcess, target: Target) -> None:
    """Until caught up, by tasks in this process."""

    def run(tasks: Sequence[WriteTask]) -> list[TaskResult]:
        return [each for task in tasks for each in write_task.run(task)]

    settings = ExportSettings(
        node.native, "sparkplug", target, "e", format="sparkplug", commit_rows=3
    )
    made = make_exporter(settings, run)
    try:
        made.start()
        while made.step() is not None:
            pass
    finally:
        made.close()


def metrics(target: Target) -> list[tuple[str | None, int | None]]:
    rows = read_table(target).to_pylist()
    rows.sort(key=lambda row: (row["_meta"]["partition"], row["_meta"]["offset"], row["alias"]))
    return [(row["metric"], row["long_value"]) for row in rows if row["message_type"] == "NDATA"]


@pytest.mark.timeout(600)
def test_an_edge_node_its_certificate_and_its_table(tmp_path: Path) -> None:
    targets = [target_in(tmp_path / kind, kind) for kind in ("delta", "parquet")]
    node = NodeProcess(tmp_path / "node", CONFIG).start()
    born, again = birth("load", "fan"), birth("fan", "load")
    try:
        first = [(NODE.format("NBIRTH"), born)]
        first += [(NODE.format("NDATA"), data(0, -number)) for number in range(4)]
        publish(node, "edge-7", first)
        for target in targets:
            export(node, target)
        publish(node, "edge-7", [(NODE.format("NDATA"), data(1, 7))])
        assert certificate(node) == born
        node.stop()
        node.start()
        assert certificate(node) == born
        # Connected again, it begins with a birth; its aliases are others now.
        second = [(NODE.format("NBIRTH"), again), (NODE.format("NDATA"), data(0, 8))]
        publish(node, "edge-7", second)
        assert certificate(node) == again
        for target in targets:
            export(node, target)
            export(node, target)
            assert metrics(target) == [
                ("load", 0), ("load", -1), ("load", -2), ("load", -3), ("fan", 7), ("fan", 8),
            ]  # fmt: skip
    finally:
        node.kill()
