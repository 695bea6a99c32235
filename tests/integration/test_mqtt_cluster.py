"""Goal: in a cluster, MQTT acknowledges no publish that the cluster can't read.

Two nodes share a MetaService group; a device is connected to one that does not lead all partitions
of the topic that its publishes go to.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paho.mqtt.client as paho
import pytest

import lakemq
from tests.support.node import NodeProcess
from tests.support.ports import free_ports

CONFIG = """
[node]
id = "{name}"
[meta]
port = {meta}
raft_port = {raft}
members = {{ a = "127.0.0.1:{raft_a}", b = "127.0.0.1:{raft_b}" }}
[admin]
enabled = false
[plugins.mqtt]
port = {mqtt}
[[plugins.mqtt.bindings]]
filter = "room/#"
topic = "rooms"
partitions = 8
[plugins.native]
port = {native}
"""
PUBLISHES = 60


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    folder = tmp_path_factory.mktemp("mqtt-cluster")
    names = ("meta", "raft", "mqtt", "native")
    ports = {node: dict(zip(names, free_ports(4), strict=True)) for node in "ab"}
    raft = {f"raft_{node}": ports[node]["raft"] for node in "ab"}
    found = {
        node: NodeProcess(folder / node, CONFIG.format(name=node, **ports[node], **raft))
        for node in "ab"
    }
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda node: node.start(60), found.values()))
        yield found
    finally:
        for node in found.values():
            node.kill()


def client_of(node: NodeProcess, version: int) -> tuple[paho.Client, queue.Queue[tuple[int, Any]]]:
    """A connected client, and what it is told: (packet identifier, reason), or (0, ...) at the end
    of its connection."""
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False
    )
    told: queue.Queue[tuple[int, Any]] = queue.Queue()
    connected: queue.Queue[object] = queue.Queue()
    client.on_connect = lambda *_: connected.put(None)
    client.on_publish = lambda _c, _u, mid, reason, properties: told.put((mid, reason))
    client.on_disconnect = lambda _c, _u, flags, reason, properties: told.put((0, reason))
    client.connect("127.0.0.1", node.mqtt_port)
    client.loop_start()
    connected.get(timeout=20)
    return client, told


def stranger(nodes: dict[str, NodeProcess]) -> NodeProcess:
    """A node that does not lead all of the topic. Which one depends on who started first."""
    with lakemq.connect(nodes["a"].native) as client:
        leaders = {each.leader for each in client.describe_topic("rooms").partitions}
    return nodes["a" if leaders == {"b"} else "b"]


def read_back(node: NodeProcess, prefix: bytes) -> set[bytes]:
    with lakemq.connect(node.native) as client:
        values = (each.value or b"" for each in client.consume("rooms"))
        return {value for value in values if value.startswith(prefix)}


def test_a_publish_for_another_nodes_partition_is_refused(nodes: dict[str, NodeProcess]) -> None:
    client, told = client_of(stranger(nodes), paho.MQTTv5)
    sent = {}
    for number in range(PUBLISHES):
        value = b"five-%d" % number
        sent[client.publish(f"room/{number}", value, qos=1).mid] = value
    outcomes = dict(told.get(timeout=20) for _ in sent)
    client.loop_stop()
    acknowledged = {sent[mid] for mid, reason in outcomes.items() if not reason.is_failure}
    assert len(acknowledged) < PUBLISHES
    assert acknowledged == read_back(nodes["a"], b"five")
    refused = {reason.value for reason in outcomes.values() if reason.is_failure}
    assert refused == {0x83}  # [MQTT-5 3.4.2.1] implementation specific error: another node's


def test_an_older_client_gets_no_acknowledgement_and_is_closed(
    nodes: dict[str, NodeProcess],
) -> None:
    node, acknowledged = stranger(nodes), set()
    for number in range(PUBLISHES):
        client, told = client_of(node, paho.MQTTv311)
        client.publish(f"room/{number}", b"three-%d" % number, qos=1)
        mid, _ = told.get(timeout=20)
        client.loop_stop()
        if not mid:
            break
        client.disconnect()
        acknowledged.add(b"three-%d" % number)
    else:
        pytest.fail("every publish was acknowledged")
    assert acknowledged == read_back(nodes["a"], b"three")
