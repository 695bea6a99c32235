"""Goal: a stored batch that is whole outside and corrupt inside stops nobody: no start, no reader.

Method: a real node refuses such batches; a data folder that holds them nevertheless, as an older
version left it, is made by writing into the journal's files while the node is down.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import queue
import threading
import urllib.request
from pathlib import Path

import grpc
import paho.mqtt.client as paho
import pytest

import lakemq
from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from lakemq.spark_plugin.export.job.run import audit_target, make_exporter
from lakemq.spark_plugin.export.job.runs import Run
from lakemq.spark_plugin.export.job.settings import ExportSettings
from lakemq.spark_plugin.export.tables.target import Target
from tests.support.node.node import NodeProcess
from tests.support.poison import bad_headers, garbage_lengths, no_frame, poison_logs
from tests.support.spark.killed_export import run_here


@pytest.fixture
def node(fresh_node: NodeProcess) -> NodeProcess:
    return fresh_node


def produce(node: NodeProcess, topic: str, batch: bytes) -> pb.ProduceResponse:
    """One Produce, past the SDK."""
    request = pb.ProduceRequest(topic=topic, partition=0, acks=pb.ACKS_LEADER, batch=batch)
    with grpc.insecure_channel(node.native) as channel:
        return next(iter(NativeStub(channel).Produce(iter([request]), timeout=30)))


@pytest.mark.parametrize(
    "poison", [garbage_lengths(), no_frame(), bad_headers()], ids=["lengths", "zstd", "headers"]
)
def test_garbage_columns_are_refused(node: NodeProcess, poison: bytes) -> None:
    with lakemq.connect(node.native) as client:
        client.create_topic("t")
        answer = produce(node, "t", poison)
        assert answer.error.code == CorruptBatch.code
        client.send("t", b"good")
        assert [each.value for each in client.consume("t")] == [b"good"]


def device(node: NodeProcess, name: str, publish: bytes | None = None) -> list[bytes]:
    """A device with a session that stays: what comes for it, up to `live`."""
    found: queue.Queue[bytes] = queue.Queue()
    ready = threading.Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, clean_session=False)
    client.on_message = lambda c, u, message: found.put(message.payload)
    client.on_connect = lambda c, u, flags, code, p: (
        client.subscribe("room/#", qos=1) if name == "sleeper" else ready.set()
    )
    client.on_subscribe = lambda *_: ready.set()
    client.connect("127.0.0.1", node.mqtt_port)
    client.loop_start()
    assert ready.wait(30)
    try:
        if publish is not None:
            client.publish("room/1", publish, qos=1, retain=True).wait_for_publish(30)
            return []
        got = [found.get(timeout=30)]
        while got[-1] not in (b"first", b"live"):
            got.append(found.get(timeout=30))
        return got
    finally:
        client.disconnect()
        client.loop_stop()


def fill(node: NodeProcess) -> None:
    """Records and state of everything that the broker keeps in topics."""
    device(node, "publisher", publish=b"first")
    assert device(node, "sleeper") == [b"first"]
    device(node, "publisher", publish=b"kept")
    with lakemq.connect(node.native) as client:
        client.create_topic("t")
        for value in (b"0", b"1"):
            client.send("t", value)
        with client.subscribe("t", group="g") as consumer:
            next(iter(consumer))
            consumer.commit()
        with client.queue("t", group="q") as queue:
            next(iter(queue)).ack()
        client.schedules.send("t", b"later", delay=datetime.timedelta(hours=1))
        with client.transactional_producer("tx") as producer, producer.transaction() as work:
            work.send("t", b"2")


def metric(node: NodeProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.addresses['admin']}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name):
                return float(line.split()[-1])
    raise AssertionError(f"no metric {name}")


def values(client: lakemq.SyncClient) -> list[bytes | None]:
    return [each.value for each in client.consume("t")]


@pytest.mark.parametrize("end", [NodeProcess.kill, NodeProcess.stop], ids=["kill -9", "SIGTERM"])
def test_no_start_and_no_reader_ends_because_of_a_stored_batch(
    node: NodeProcess, end: object, caplog: pytest.LogCaptureFixture
) -> None:
    fill(node)
    assert callable(end)
    end(node)
    poisoned = asyncio.run(poison_logs(node.data_dir))
    assert {"t", "mqtt", "__mqtt_sessions", "__mqtt_retained"} < set(poisoned)
    assert {"_lakemq_offsets", "_lakemq_queues", "_lakemq_staged"} < set(poisoned)
    node.start()
    assert metric(node, "lakemq_corrupt_batches") >= 4
    assert "topic _lakemq_offsets partition" in node.log_file.read_text()
    with lakemq.connect(node.native) as client, caplog.at_level(logging.WARNING, "lakemq"):
        client.send("t", b"3")
        assert values(client) == [b"0", b"1", b"2", b"3"]
        warned = [each.message for each in caplog.records if "topic t partition 0" in each.message]
        assert len(warned) == 3
        with client.subscribe("t", group="g") as consumer:
            records = iter(consumer)
            assert [next(records).value for _ in range(3)] == [b"1", b"2", b"3"]
            assert consumer.consumer.counters.corrupt_batches == 3
        with client.queue("t", group="q") as queue:
            messages = iter(queue)
            assert [next(messages).value for _ in range(3)] == [b"1", b"2", b"3"]
        with pytest.raises(lakemq.CorruptBatch, match="topic t partition 0 offset 3: "):
            list(client.consume("t", on_corrupt="raise"))
        with (
            client.subscribe("t", group="new", on_corrupt="raise") as consumer,
            pytest.raises(lakemq.CorruptBatch, match="topic t partition 0 offset 3: "),
        ):
            list(consumer)
        assert len(client.schedules.waiting("t")) == 1
        assert min(client.offsets_for_timestamp("t", 1).values()) == 0
    assert device(node, "publisher", publish=b"live") == []
    assert device(node, "sleeper") == [b"kept", b"live"]
    assert node.stop() == 0
    node.start()
    with lakemq.connect(node.native) as client:
        assert values(client)[-1] == b"3"


@pytest.mark.parametrize("format", ["raw", "json"])
def test_an_export_and_its_audit_step_over_stored_batches(
    node: NodeProcess, tmp_path: Path, format: str
) -> None:
    with lakemq.connect(node.native) as client:
        client.create_topic("t")
        client.send_batch("t", lakemq.Columns([b'{"n":1}', b'{"n":2}']))
    assert node.stop() == 0
    asyncio.run(poison_logs(node.data_dir))
    node.start()
    with lakemq.connect(node.native) as client:
        end = client.describe_topic("t").partitions[0].high_watermark
        client.send("t", b'{"n":3}')
    target = Target("parquet", path=str(tmp_path / "table"))
    schema = {"format": "json", "value_schema": "n bigint"} if format == "json" else {}
    exporter = make_exporter(ExportSettings(node.native, "t", target, "e", **schema), run_here)
    exporter.start()
    report = exporter.step()
    exporter.close()
    assert report is not None
    assert report.rows == 3
    assert report.skipped == {0: [Run(2, end)]}
    (found,) = audit_target(node.native, "t", target, "e", "", by_key=True)
    assert found.complete
    assert (found.records, found.rows, found.skipped) == (3, 3, [Run(2, end)])
