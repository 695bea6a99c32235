"""Goal: in a cluster, MQTT acknowledges no publish that the cluster can't read.

Two nodes share a MetaService group. Records go to one partition first, so one node leads all that
is bound and the other, the stranger, leads nothing; then the topic grows over both nodes.
"""

from __future__ import annotations

import queue
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import paho.mqtt.client as paho
import pytest

import lakemq
from tests.support.node.node import NodeProcess
from tests.support.node.ports import free_ports

CONFIG = """
[node]
id = "{name}"
[meta]
port = {meta}
raft_port = {raft}
members = {{ a = "127.0.0.1:{raft_a}", b = "127.0.0.1:{raft_b}" }}
[admin]
port = {admin}
[plugins.mqtt]
port = {mqtt}
[[plugins.mqtt.bindings]]
filter = "room/#"
topic = "rooms"
partitions = 1
[[plugins.mqtt.bindings]]
filter = "loose/#"
topic = "rooms"
qos0 = true
[plugins.native]
port = {native}
"""
PUBLISHES = 60
NOT_LED = 0x83
"""[MQTT-5 3.4.2.1] implementation specific error: valid, but not accepted by this server."""
PAHO_RELEASED = 0x92
"""What paho makes of it at QoS 2: it sends PUBREL all the same, and tells what answers that."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    folder = tmp_path_factory.mktemp("mqtt-cluster")
    names = ("meta", "raft", "mqtt", "native", "admin")
    ports = {node: dict(zip(names, free_ports(5), strict=True)) for node in "ab"}
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


class Client:
    """A client of one node, and what it is told: (packet identifier, reason), or (0, ...) at the
    end of its connection."""

    def __init__(self, node: NodeProcess, version: int, **will: Any) -> None:
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False
        )
        self.told: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.connected: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.messages: queue.Queue[bytes] = queue.Queue()
        self.paho.on_connect = lambda _c, _u, _f, reason, properties: self.connected.put(
            (reason, properties)
        )
        self.paho.on_publish = lambda _c, _u, mid, reason, properties: self.told.put((mid, reason))
        self.paho.on_disconnect = lambda _c, _u, flags, reason, properties: self.told.put(
            (0, reason)
        )
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message.payload)
        if will:
            self.paho.will_set(**will)
        self.paho.connect("127.0.0.1", node.mqtt_port)
        self.paho.loop_start()
        self.reason, self.properties = self.connected.get(timeout=20)

    def is_told(self) -> tuple[int, Any]:
        return self.told.get(timeout=20)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def leaders_of(nodes: dict[str, NodeProcess]) -> list[str]:
    with lakemq.connect(nodes["a"].native) as client:
        return [each.leader for each in client.describe_topic("rooms").partitions]


def stored(node: NodeProcess) -> list[bytes]:
    with lakemq.connect(node.native) as client:
        return [each.value or b"" for each in client.consume("rooms")]


def not_led(node: NodeProcess) -> int:
    """Publishes that the node dropped or refused as another's."""
    with urllib.request.urlopen(f"http://{node.addresses['admin']}/metrics") as answer:
        found = re.search(rb"^mqtt_publishes_not_led_total\S* (\d+)", answer.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.fixture
def leader(nodes: dict[str, NodeProcess]) -> NodeProcess:
    (name,) = set(leaders_of(nodes))
    return nodes[name]


@pytest.fixture
def stranger(nodes: dict[str, NodeProcess], leader: NodeProcess) -> NodeProcess:
    (found,) = [node for node in nodes.values() if node is not leader]
    return found


def test_a_client_of_version_5_is_sent_to_the_node_that_leads(
    leader: NodeProcess, stranger: NodeProcess
) -> None:
    deadline = time.monotonic() + 20
    while True:  # the stranger looks for the other node's address every two seconds
        client = Client(stranger, paho.MQTTv5)
        client.close()
        if client.reason.is_failure or time.monotonic() > deadline:
            break
    assert client.reason.value == 0x9C
    assert client.properties.ServerReference == leader.addresses["mqtt"]
    there = Client(leader, paho.MQTTv5)
    assert not there.reason.is_failure
    there.close()


@pytest.mark.parametrize("name", ["room/1", "loose/1", "$delayed/1/room/1"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_an_older_client_gets_no_acknowledgement_and_is_closed(
    stranger: NodeProcess, leader: NodeProcess, name: str, qos: int, retain: bool
) -> None:
    before = not_led(stranger)
    client = Client(stranger, paho.MQTTv311)
    client.paho.publish(name, b"lost", qos=qos, retain=retain)
    mid, _ = client.is_told()
    client.close()
    assert mid == 0, "acknowledged"
    assert not_led(stranger) == before + 1
    assert stored(leader) == []
    late = Client(stranger, paho.MQTTv311)
    late.paho.subscribe("#", 1)
    with pytest.raises(queue.Empty):  # nor is it retained
        late.messages.get(timeout=0.3)
    late.close()


def test_qos_0_is_dropped_and_counted(leader: NodeProcess, stranger: NodeProcess) -> None:
    before = not_led(stranger)
    client = Client(stranger, paho.MQTTv311)
    for _ in range(5):
        client.paho.publish("loose/1", b"lost", qos=0)
    client.paho.publish("unbound", b"x", qos=1)  # answered behind them
    while client.is_told()[0] != 6:
        pass
    client.close()
    deadline = time.monotonic() + 20
    while not_led(stranger) < before + 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not_led(stranger) == before + 5 and stored(leader) == []


def test_a_will_is_dropped_and_counted(leader: NodeProcess, stranger: NodeProcess) -> None:
    before = not_led(stranger)
    client = Client(
        stranger, paho.MQTTv311, topic="room/w", payload=b"lost", qos=1, retain=True
    )  # fmt: skip
    client.paho.loop_stop()
    client.paho.socket().close()
    deadline = time.monotonic() + 20
    while not_led(stranger) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not_led(stranger) == before + 1 and stored(leader) == []


@pytest.fixture(scope="module")
def spread(nodes: dict[str, NodeProcess]) -> None:
    """The topic has partitions at both nodes. Tests of one leader come before."""
    with lakemq.connect(nodes["a"].native) as client:
        client.admin.add_partitions("rooms", 8)
    deadline = time.monotonic() + 20
    while set(leaders_of(nodes)) != {"a", "b"}:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.usefixtures("spread")
@pytest.mark.parametrize("name", ["room/{}", "$delayed/1/room/{}"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_for_another_nodes_partition_is_refused(
    nodes: dict[str, NodeProcess], name: str, qos: int
) -> None:
    client = Client(nodes["a"], paho.MQTTv5)
    assert not client.reason.is_failure, "neither node is the right one"
    sent = {}
    for number in range(PUBLISHES):
        value = f"{name} {qos} {number}".encode()
        sent[client.paho.publish(name.format(number), value, qos=qos).mid] = value
    outcomes = dict(client.is_told() for _ in sent)
    client.close()
    acknowledged = {sent[mid] for mid, reason in outcomes.items() if not reason.is_failure}
    assert 0 < len(acknowledged) < PUBLISHES
    reasons = {reason.value for reason in outcomes.values() if reason.is_failure}
    assert reasons == {NOT_LED if qos == 1 else PAHO_RELEASED}
    deadline = time.monotonic() + 20
    while not acknowledged <= set(stored(nodes["a"])) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert acknowledged == set(sent.values()) & set(stored(nodes["a"]))


@pytest.mark.usefixtures("spread")
def test_a_refused_publish_is_not_retained(nodes: dict[str, NodeProcess]) -> None:
    client = Client(nodes["b"], paho.MQTTv5)
    sent = {}
    for number in range(PUBLISHES):
        name = f"room/kept/{number}"
        sent[client.paho.publish(name, name.encode(), qos=1, retain=True).mid] = name.encode()
    outcomes = dict(client.is_told() for _ in sent)
    client.close()
    acknowledged = {sent[mid] for mid, reason in outcomes.items() if not reason.is_failure}
    late = Client(nodes["b"], paho.MQTTv5)
    late.paho.subscribe("room/kept/#", 1)
    assert 0 < len(acknowledged) < PUBLISHES
    assert {late.messages.get(timeout=20) for _ in acknowledged} == acknowledged
    with pytest.raises(queue.Empty):
        late.messages.get(timeout=0.3)
    late.close()
