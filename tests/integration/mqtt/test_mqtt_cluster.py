"""Goal: an MQTT client publishes at any node of a cluster: what is acknowledged is stored once, at
the node that leads, in the order of its client, also when nodes lose each other or die meanwhile.

Three nodes, a topic of nine partitions without copies, so that every node leads some of them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import paho.mqtt.client as paho
import pytest

import lakemq
from lakemq.testing.cluster import Cluster

CONFIG = """
[cluster]
ack_wait_ms = 100000
[plugins.mqtt]
sparkplug_aware = true
[[plugins.mqtt.bindings]]
filter = "room/#"
topic = "rooms"
partitions = 9
[[plugins.mqtt.bindings]]
filter = "loose/#"
topic = "rooms"
qos0 = true
"""
NAMES = ("n1", "n2", "n3")
PARTITIONS = 9
PUBLISHES = 60
"""[MQTT-5 3.9.3] implementation specific error: valid, but not accepted by this server."""
WAIT_S = 120
"""Longer than publishes wait for their leader, which may need a minute to start again on a busy
machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("mqtt-cluster"), config=CONFIG) as found:
        # Made when the first node started, so with all its partitions there until others join.
        until(lambda: Counter(leaders(found)) == dict.fromkeys(NAMES, PARTITIONS // 3))
        yield found


def until(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def leaders(cluster: Cluster) -> list[str]:
    with lakemq.connect(cluster.bootstrap) as client:
        return [each.leader for each in client.describe_topic("rooms").partitions]


def stored(cluster: Cluster, prefix: str) -> dict[str, list[bytes]]:
    """Values by name, in order, of names that begin so."""
    found: dict[str, list[bytes]] = {}
    with lakemq.connect(cluster.bootstrap, timeout_s=WAIT_S) as client:
        for record in client.consume("rooms"):
            name = (record.key or b"").decode()
            if name.startswith(prefix):
                found.setdefault(name, []).append(record.value or b"")
    return found


class Client:
    """A client of one node, and what it is told of its publishes."""

    def __init__(self, cluster: Cluster, node: str, version: int = paho.MQTTv5) -> None:
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False
        )
        self.paho.max_inflight_messages_set(1000)
        self.told: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.codes: queue.Queue[list[int]] = queue.Queue()
        self.messages: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.connected: queue.Queue[Any] = queue.Queue()
        self.paho.on_connect = lambda _c, _u, _f, reason, _p: self.connected.put(reason)
        self.paho.on_publish = lambda _c, _u, mid, reason, _p: self.told.put((mid, reason))
        self.paho.on_subscribe = lambda _c, _u, _m, codes, _p: self.codes.put(
            [each.value for each in codes]
        )
        self.paho.on_message = lambda _c, _u, message: self.messages.put(
            (message.topic, message.payload)
        )
        host, _, port = cluster.address(node, "mqtt").rpartition(":")
        self.paho.connect(host, int(port))
        self.paho.loop_start()
        assert not self.connected.get(timeout=WAIT_S).is_failure

    def outcomes(self, count: int) -> dict[int, bool]:
        """Packet identifier -> whether it was acknowledged without an error."""
        found = [self.told.get(timeout=WAIT_S) for _ in range(count)]
        return {mid: not reason.is_failure for mid, reason in found}

    def subscribe(self, *filters: str) -> list[int]:
        self.paho.subscribe([(each, paho.SubscribeOptions(qos=1)) for each in filters])
        return self.codes.get(timeout=WAIT_S)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()
        # Without callbacks it is freed at once, and closes the sockets that it wakes its thread by.
        self.paho.on_connect = self.paho.on_publish = None
        self.paho.on_subscribe = self.paho.on_message = None


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("qos", [1, 2])
def test_publishes_at_any_node_are_stored_once_and_in_order(
    cluster: Cluster, version: int, qos: int
) -> None:
    prefix = f"room/any/{version}/{qos}/"
    sent: dict[str, list[bytes]] = {}
    for node in NAMES:
        client = Client(cluster, node, version)
        for number in range(PUBLISHES):
            name, value = f"{prefix}{node}/{number % 12}", b"%d" % number
            client.paho.publish(name, value, qos=qos)
            sent.setdefault(name, []).append(value)
        assert all(client.outcomes(PUBLISHES).values())
        client.close()
    assert stored(cluster, prefix) == sent


@pytest.mark.parametrize("node", NAMES)
def test_qos_0_wills_and_delayed_publishes_are_routed(cluster: Cluster, node: str) -> None:
    client = Client(cluster, node)
    for number in range(20):
        client.paho.publish(f"loose/{node}/{number}", b"qos 0", qos=0)
        client.paho.publish(f"$delayed/1/room/later/{node}/{number}", b"later", qos=1)
        client.paho.publish(f"room/kept/{node}/{number}", b"kept", qos=1, retain=True)
    client.outcomes(60)
    client.close()
    until(lambda: len(stored(cluster, f"loose/{node}/")) == 20)
    until(lambda: len(stored(cluster, f"room/later/{node}/")) == 20)
    assert len(stored(cluster, f"room/kept/{node}/")) == 20


def test_sparkplug_births_of_any_node_are_retained_on_all(cluster: Cluster) -> None:
    births = {node: f"spBv1.0/plant/NBIRTH/{node}" for node in NAMES}
    host = Client(cluster, "n2")
    assert host.subscribe("$sparkplug/certificates/#") == [1]
    seen: set[tuple[str, bytes]] = set()
    for node, name in births.items():
        edge = Client(cluster, node)
        edge.paho.publish(name, b"birth 0", qos=0)
        edge.paho.publish("$sparkplug/certificates/" + name, b"forged", qos=1)
        assert False in edge.outcomes(2).values()

        # Again, for the node may not have heard yet what the host at another one wants.
        def reborn(edge: Client = edge, name: str = name) -> bool:
            edge.paho.publish(name, b"birth 1", qos=0)
            with suppress(queue.Empty):
                while True:
                    seen.add(host.messages.get(timeout=0.5))
            return ("$sparkplug/certificates/" + name, b"birth 1") in seen

        until(reborn)
        edge.close()
    wanted = {("$sparkplug/certificates/" + name, b"birth 1") for name in births.values()}
    assert all(payload != b"forged" for _, payload in seen)
    host.close()
    for node in NAMES:
        late = Client(cluster, node)
        held: dict[str, bytes] = {}

        def ask(late: Client = late, held: dict[str, bytes] = held) -> bool:
            late.subscribe("$sparkplug/certificates/spBv1.0/plant/NBIRTH/#")
            with suppress(queue.Empty):
                while True:
                    held.update([late.messages.get(timeout=0.5)])
            return set(held.items()) == wanted

        until(ask)
        late.close()


def test_a_will_is_stored_wherever_its_client_was(cluster: Cluster) -> None:
    for number in range(12):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
        client.will_set(f"room/will/{number}", b"gone", qos=1)
        host, _, port = cluster.address("n1", "mqtt").rpartition(":")
        client.connect(host, int(port))
        client.loop_start()
        until(client.is_connected)
        client.loop_stop()
        socket = client.socket()
        assert socket is not None
        socket.close()
    until(lambda: len(stored(cluster, "room/will/")) == 12)


class Stream:
    """A client that publishes all the time, from a thread."""

    def __init__(self, cluster: Cluster, node: str, prefix: str) -> None:
        self.client = Client(cluster, node)
        self.sent: dict[int, tuple[str, bytes]] = {}
        for number in range(12):  # until all links between nodes are there
            self.client.paho.publish(f"room/first/{number}", b"x", qos=1)
        assert all(self.client.outcomes(12).values())
        self._prefix = prefix
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        number = 0
        while not self._stop.wait(0.005):
            name, value = f"{self._prefix}{number % 12}", b"%d" % number
            self.sent[self.client.paho.publish(name, value, qos=1).mid] = (name, value)
            number += 1

    def end(self) -> tuple[set[tuple[str, bytes]], set[tuple[str, bytes]]]:
        """(what was acknowledged, all that was sent)."""
        self._stop.set()
        self._thread.join()
        outcomes = self.client.outcomes(len(self.sent))
        self.client.close()
        acknowledged = {self.sent[mid] for mid, good in outcomes.items() if good}
        return acknowledged, set(self.sent.values())


def assert_once_and_in_order(
    cluster: Cluster, prefix: str, acknowledged: set[tuple[str, bytes]], sent: int
) -> None:
    found = stored(cluster, prefix)
    places = [(name, value) for name, values in found.items() for value in values]
    twice = [each for each, count in Counter(places).items() if count > 1]
    assert not twice
    assert not acknowledged - set(places)
    for values in found.values():
        numbers = [int(value) for value in values]
        assert numbers == sorted(numbers)
    assert len(acknowledged) > sent // 2


def test_a_cut_link_neither_loses_nor_repeats(cluster: Cluster) -> None:
    """First for a second, in which nothing is lost; then until the connection is given up: what
    arrived at the leader is stored there, and no answer says so. Every node reaches the
    MetaService: one that does not ends its connections after 5 s."""
    stream = Stream(cluster, "n1", "room/cut/")
    for both, wait_s in ((True, 1), (False, 6)):
        time.sleep(0.5)
        cluster.cut("n2", "n1", both=both, listeners=("peer",))
        time.sleep(wait_s)
        cluster.heal()
    time.sleep(0.5)
    acknowledged, sent = stream.end()
    assert acknowledged == sent, "all were stored in time"
    assert_once_and_in_order(cluster, "room/cut/", acknowledged, len(sent))


def test_a_leader_that_is_killed_and_comes_back_has_each_publish_once(cluster: Cluster) -> None:
    """Without copies its partitions wait for it; publishes wait as long as `ack_wait_ms` says."""
    stream = Stream(cluster, "n1", "room/killed/")
    time.sleep(1)
    cluster.restart("n3")
    until(lambda: set(leaders(cluster)) == set(NAMES))
    time.sleep(1)
    acknowledged, sent = stream.end()
    assert_once_and_in_order(cluster, "room/killed/", acknowledged, len(sent))
    assert acknowledged == sent


def test_with_copies_publishes_go_on_when_a_leader_is_gone(cluster: Cluster) -> None:
    """What it had acknowledged the next leaders have, and every node hears everything."""
    with lakemq.connect(cluster.bootstrap) as client:
        client.admin.alter_topic("rooms", replication=3, min_in_sync=2)
        until(lambda: all(
            len(each.in_sync) == 3 for each in client.describe_topic("rooms").partitions
        ))  # fmt: skip
    subscriber = Client(cluster, "n2")
    assert subscriber.subscribe("room/copied/#") == [1]
    stream = Stream(cluster, "n1", "room/copied/")
    time.sleep(1)
    cluster.kill("n3")
    until(lambda: set(leaders(cluster)) == {"n1", "n2"})
    time.sleep(1)
    acknowledged, sent = stream.end()
    assert acknowledged == sent
    assert_once_and_in_order(cluster, "room/copied/", acknowledged, len(sent))
    heard = {subscriber.messages.get(timeout=WAIT_S) for _ in sent}
    assert heard == sent
    subscriber.close()
