"""Goal: `$SYS` tells of every node of a cluster, and what a node sends is believed only as far as
it makes sense."""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.plugins.mqtt.ops.system_topics import MESSAGE_MAX_BYTES
from lakemq.plugins.mqtt.server.system_channel import SystemChannel
from lakemq.plugins.mqtt.wire.packets import Publish
from tests.support.memory_channels import MemoryChannels
from tests.support.mqtt.bench import START_MS, Bench
from tests.support.mqtt.memory_broker import MemoryBroker


class Node:
    def __init__(self, cluster: MemoryChannels, name: str, clients: int) -> None:
        self.bench = Bench()
        broker = MemoryBroker(cluster, name)
        self.system = SystemChannel(self.bench.hub, broker, "1.2", lambda: START_MS)
        self.system.open()
        for number in range(clients):
            self.bench.connect(f"{name}-{number}")
        self.watcher = self.bench.connect(f"{name}-w")
        self.watcher.subscribe("$SYS/#")

    def told(self) -> dict[str, bytes]:
        return dict(self.watcher.publishes())


def two_nodes() -> tuple[Node, Node]:
    cluster = MemoryChannels()
    return Node(cluster, "n1", 2), Node(cluster, "n2", 4)


async def rounds(*nodes: Node) -> None:
    for _ in range(2):
        for node in nodes:
            node.system.publish()
        for _ in range(10):
            await asyncio.sleep(0)


async def test_every_node_tells_of_all_and_their_sum() -> None:
    nodes = two_nodes()
    await rounds(*nodes)
    for node in nodes:
        told = node.told()
        assert told["$SYS/brokers/n1/clients/connected"] == b"3"
        assert told["$SYS/brokers/n2/clients/connected"] == b"5"
        assert told["$SYS/broker/clients/connected"] == b"8"
        assert told["$SYS/brokers/n2/version"] == b"LakeMQ 1.2"
        assert told["$SYS/broker/retained messages/count"] != b"", "held by every node: no sum"


def test_publishes_are_counted_under_mosquittos_names_too() -> None:
    alone = Node(MemoryChannels(), "n1", 0)
    reader, writer = alone.bench.connect("reader"), alone.bench.connect("writer")
    reader.subscribe("a", "b")
    for name in ("a", "a", "b", "c"):
        writer.send(Publish(name, b"x", 0))
    alone.system.publish()
    told = alone.told()
    assert told["$SYS/broker/publish/messages/received"] == b"4"
    assert told["$SYS/broker/publish/messages/sent"] == b"3"


async def test_a_node_that_is_gone_is_left_out() -> None:
    one, other = two_nodes()
    await rounds(one, other)
    one.system.ended(Peer("n2", 1))
    one.told()
    one.system.publish()
    assert one.told()["$SYS/broker/clients/connected"] == b"3"
    late = one.bench.connect("late")
    late.subscribe("$SYS/brokers/#")
    assert {name.split("/")[2] for name, _ in late.publishes()} == {"n1"}


async def test_a_node_alone_tells_of_itself_once() -> None:
    alone = Node(MemoryChannels(), "n1", 1)
    await rounds(alone)
    told = alone.told()
    assert told["$SYS/broker/clients/connected"] == b"2"
    assert not [name for name in told if name.startswith("$SYS/brokers/")]


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"version": 7}),
     msgpack.packb({"version": "v" * 70_000}), msgpack.packb({"x": "y" * MESSAGE_MAX_BYTES})],
    ids=["empty", "no-msgpack", "no-map", "no-text", "long", "large"],
)  # fmt: skip
async def test_what_makes_no_sense_is_left_out(payload: bytes) -> None:
    one, _ = two_nodes()
    one.system.message(Peer("n2", 1), payload)
    one.system.publish()
    assert not [name for name in one.told() if name.startswith("$SYS/brokers/")]


async def test_what_is_no_number_is_not_added() -> None:
    one, _ = two_nodes()
    found = {"clients/connected": "-4", "clients/total": "9" * 21, "what/else": "1",
             "bytes/sent": "7"}  # fmt: skip
    one.system.message(Peer("n2", 1), msgpack.packb(found))
    one.system.publish()
    told = one.told()
    assert told["$SYS/broker/clients/connected"] == b"3"
    named = {name: value for name, value in told.items() if name.startswith("$SYS/brokers/n2/")}
    assert named == {"$SYS/brokers/n2/bytes/sent": b"7"}
