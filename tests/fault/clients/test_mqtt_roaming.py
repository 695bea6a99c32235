"""Goal: what QoS 1 and 2 promise holds for clients of other people's making that come to any node,
while nodes are killed, stand still or are cut off, and connections break.

Method: three real processes; a publisher and a subscriber of each of paho, aiomqtt and mqtt.js,
with sessions that are kept, connect to random nodes. What is stored and what each subscriber was
given is held against what was published. With `LAKEMQ_FAULT_ROUNDS=5`
every fault five times; below 2 it is left out.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import ask, until_in_sync
from tests.support.mqtt.mqtt_js import installed
from tests.support.mqtt.roaming import Roaming, RoamingAiomqtt, RoamingMqttJs, RoamingPaho
from tests.support.mqtt.roaming_load import Publishers, by_name, lacks, problems, stored

ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(900),
    pytest.mark.skipif(ROUNDS < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2"),
]
FAULTS = ("kill", "pause", "isolate") * ROUNDS
TOPIC = "roaming"
CONFIG = f"""
[cluster]
ack_wait_ms = 100000
[topics]
replication = 3
min_in_sync = 2
[[plugins.mqtt.bindings]]
filter = "n/#"
topic = "{TOPIC}"
partitions = 3
"""
WAIT_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("roaming"), config=CONFIG) as running:
        for topic in (TOPIC, "__mqtt_homes"):
            until(lambda topic=topic: is_there(running, topic), WAIT_S)  # type: ignore[misc]
            until_in_sync(running, topic)
        yield running


def is_there(cluster: Cluster, topic: str) -> bool:
    async def find(client: RemoteClient) -> bool:
        return topic in {each.name for each in (await client.topics())[1]}

    return ask(cluster, find)


@pytest.fixture(scope="module")
def mqtt_js(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("js"))


def harm(cluster: Cluster, node: str, fault: str) -> Callable[[], None]:
    """What ends it."""
    if fault == "kill":
        cluster.kill(node)
        return lambda: cluster.start_node(node)
    if fault == "pause":
        cluster.pause(node)
        return lambda: cluster.resume(node)
    cluster.isolate(node)
    return cluster.heal


def test_clients_of_three_libraries_roam_while_nodes_are_harmed(
    cluster: Cluster, mqtt_js: Path
) -> None:
    ports = [int(cluster.address(node, "mqtt").rpartition(":")[2]) for node in cluster.names]
    dice = random.Random(15)

    def one_of_each(role: str) -> list[Roaming]:
        return [
            RoamingPaho(f"paho-{role}", ports),
            RoamingAiomqtt(f"aiomqtt-{role}", ports),
            RoamingMqttJs(f"mqttjs-{role}", ports, mqtt_js),
        ]

    readers = one_of_each("reads")
    for each in readers:
        each.subscribe("n/#", 2)
    until(lambda: all(each.subscribed.is_set() for each in readers), WAIT_S)
    publishers = Publishers(one_of_each("sends"), "n")
    everyone = [*readers, *publishers.clients]

    def roam() -> None:
        for client in dice.sample(everyone, len(everyone)):
            client.cut()
            time.sleep(0.1)

    publishers.until_acknowledged(20)
    for fault in FAULTS:
        roam()
        node = dice.choice(cluster.names)
        mend = harm(cluster, node, fault)
        began = time.monotonic()
        roam()
        publishers.until_acknowledged(20)
        print(f"{fault} {node}: all acknowledge again after {time.monotonic() - began:.1f} s")
        mend()
        for topic in (TOPIC, "__mqtt_homes"):
            until_in_sync(cluster, topic)
        publishers.until_acknowledged(20)
    publishers.stop()
    expected = publishers.expected()
    deadline = time.monotonic() + WAIT_S
    while lacking := {
        each.name: lacks(each, expected) for each in readers if lacks(each, expected)
    }:
        assert time.monotonic() < deadline, f"without the last one of: {lacking}"
        time.sleep(0.1)
    moves = {each.name: each.connections for each in everyone}
    for each in everyone:
        each.close()
    there = stored(cluster, TOPIC)
    given = {each.name: by_name(each.received) for each in readers}
    print(f"{publishers.sent} publishes of each; connections {moves}")
    assert min(moves.values()) > 1, "each has come to a node more than once"
    assert problems({"stored": there, **given}, expected) == []
