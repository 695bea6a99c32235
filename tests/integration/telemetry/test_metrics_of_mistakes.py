"""Goal: metrics of what goes wrong on one node move: plugins, clients, transactions, restarts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import aiomqtt
import grpc
import pytest

import lakemq
from lakemq.broker_core.api.records.batch import ProducerStamp, encode
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from tests.support.node.metrics import Now, now, still, wait_for
from tests.support.node.node import NodeProcess, ports_kept
from tests.support.node.plugins import plugin_path

PLUGIN = """
import time
from lakemq.broker_core.api.hooks import hookimpl

class Careless:
    def intercept(self, topic, columns, principal):
        if topic == "bad":
            raise KeyError("unit")
        if topic == "slow":
            time.sleep(1.2)
        return columns

@hookimpl
def register_interceptors(context):
    return [Careless()]
"""
CONFIG = (
    ports_kept()
    + """
[transactions]
transaction_timeout_ms = 3000
[[plugins.mqtt.bindings]]
filter = "bad"
topic = "bad"
[[plugins.mqtt.bindings]]
filter = "slow"
topic = "slow"
[plugins.careless]
"""
)
SILENT = bytes.fromhex("100d 0004 4d515454 04 02 0001 0001 69")
"""CONNECT of MQTT 3.1.1 with a keep-alive interval of 1 s."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("mistakes")
    path = plugin_path(folder / "plugin", "careless", PLUGIN)
    with NodeProcess(folder, CONFIG, path) as node:
        yield node


def told(node: NodeProcess) -> Now:
    return now(node.addresses["admin"])


async def publish(port: int, topic: str) -> None:
    there = aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5)
    async with there as client:
        await client.publish(topic, b"x", qos=1)


def test_a_plugin_that_fails_and_one_that_holds_the_node(node: NodeProcess) -> None:
    before = told(node)
    for topic in ("bad", "slow"):
        asyncio.run(publish(node.mqtt_port, topic))
    after = told(node)
    assert not still(
        before, after, "interceptors.calls", "interceptors.failures", "interceptors.slow",
        "node.loop.stalls", "mqtt.publishes.failed",
    )  # fmt: skip
    for name in ("interceptors.time", "node.loop.stalled"):
        assert after[name] - before[name] > 0.5, name


def test_a_client_that_falls_silent(node: NodeProcess) -> None:
    before = told(node)
    with socket.create_connection(("127.0.0.1", node.mqtt_port)) as silent:
        silent.sendall(SILENT)
        assert silent.recv(4)[0] == 0x20
        silent.settimeout(20)
        assert silent.recv(4) == b""
    assert not still(before, told(node), "mqtt.keep_alive.timeouts")


def test_appends_that_are_repeated_and_refused(
    node: NodeProcess, client: lakemq.SyncClient
) -> None:
    client.create_topic("appends")
    before = told(node)
    with grpc.insecure_channel(node.native) as channel:
        stub = NativeStub(channel)
        mine = stub.InitProducer(pb.InitProducerRequest()).producer_id
        first, gap = (
            encode(lakemq.Columns([b"a"]), now_ms=1, producer=ProducerStamp(mine, 0, sequence))
            for sequence in (0, 9)
        )
        asked = [pb.ProduceRequest(topic="appends", acks=1, batch=b) for b in (first, first, gap)]
        answers = list(stub.Produce(iter(asked)))
    assert [each.duplicate for each in answers] == [False, True, False] and answers[2].error.code
    after = told(node)
    assert after["journal.duplicates"] == before["journal.duplicates"] + 1
    assert after["journal.refused_appends"] == before["journal.refused_appends"] + 1


def test_a_transaction_that_is_left_alone(node: NodeProcess, client: lakemq.SyncClient) -> None:
    client.create_topic("left")
    before = told(node)
    assert before["transactions.waiting.bytes"] == 0
    with (
        pytest.raises(lakemq.LakeMQError),
        client.transactional_producer("left") as producer,
        producer.transaction() as transaction,
    ):
        # More than what waits in the client for a batch to be full.
        for _ in range(3):
            transaction.send("left", b"x" * 1_000_000)
        wait_for(lambda: told(node), lambda has: has["transactions.waiting.bytes"] > 1_000_000)
        wait_for(lambda: told(node), lambda has: has["transactions.waiting.bytes"] == 0)
    assert not still(before, told(node), "transactions.expired")


def test_records_that_are_only_on_disk(node: NodeProcess, client: lakemq.SyncClient) -> None:
    client.create_topic("old")
    client.send("old", b"x")
    before = told(node)
    assert [each.value for each in client.consume("old")] == [b"x"]
    assert told(node)["journal.disk_reads"] == before["journal.disk_reads"]
    node.stop()
    node.start()
    before = told(node)
    with lakemq.connect(node.native, timeout_s=20) as reader:
        assert [each.value for each in reader.consume("old")] == [b"x"]
    assert not still(before, told(node), "journal.disk_reads")
