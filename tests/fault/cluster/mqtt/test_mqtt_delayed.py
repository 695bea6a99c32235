"""Goal: a delayed publish comes once, whichever node took it and whichever dies before it is due.

Method: three real processes. The node that took publishes is killed, then the one that publishes
what is due, while it does; leadership is given away in good order, too.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest

from lakemq.broker_core.api.state.internal_topics import DELAYED
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import partitions, until_in_sync
from tests.support.mqtt.faithful_paho import Paho

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
CONFIG = """
[topics]
replication = 3
min_in_sync = 2
[[plugins.mqtt.bindings]]
filter = "d/#"
topic = "later"
partitions = 3
"""
WAIT_S = 90


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("delayed"), config=CONFIG) as running:
        settled(running)
        yield running


def settled(cluster: Cluster) -> None:
    for topic in ("later", DELAYED):
        until_in_sync(cluster, topic)


class Client:
    """A client of one node."""

    def __init__(self, cluster: Cluster, node: str, name: str) -> None:
        self.payloads: list[bytes] = []
        self.subscribed = threading.Event()
        client = self.paho = Paho(
            paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5
        )
        client.on_message = lambda c, u, message: self.payloads.append(message.payload)
        client.on_subscribe = lambda *_: self.subscribed.set()
        client.max_queued_messages_set(0)
        client.connect("127.0.0.1", int(cluster.address(node, "mqtt").rsplit(":", 1)[1]))
        client.loop_start()
        until(client.is_connected, WAIT_S)

    def delay(self, seconds: int, name: str, payload: bytes, qos: int) -> None:
        """Returns when it is acknowledged."""
        info = self.paho.publish(f"$delayed/{seconds}/{name}", payload, qos)
        info.wait_for_publish(WAIT_S)
        assert info.is_published()

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def stored(cluster: Cluster) -> Counter[bytes]:
    return Counter(one.value or b"" for each in cluster.stored("later").values() for one in each)


def leader(cluster: Cluster) -> str:
    (one,) = partitions(cluster, DELAYED)
    return one.leader or ""


def test_what_waits_outlasts_any_node(cluster: Cluster) -> None:
    """Each node takes some; the one that leads the topic dies before they are due, and so does,
    after it is back, the next one while it publishes."""
    expected: set[bytes] = set()
    dice = random.Random(3)
    for turn in range(2):
        names = list(cluster.names)
        clients = [Client(cluster, name, f"s-{turn}-{name}") for name in names]
        begun = time.monotonic()
        for number in range(90):
            payload = b"%d-%d" % (turn, number)
            seconds = max(1, round(begun + 6 + dice.random() * 4 - time.monotonic()))
            clients[number % 3].delay(seconds, f"d/{number % 7}", payload, 1 + number % 2)
            expected.add(payload)
        if turn:
            until(lambda: len(stored(cluster)) > 90, WAIT_S)  # it has begun
        victim = leader(cluster)
        cluster.kill(victim)
        for client in clients:
            client.close()
        until(lambda: set(stored(cluster)) == expected, WAIT_S)
        cluster.start_node(victim)
        settled(cluster)
    time.sleep(3)
    assert set(stored(cluster).values()) == {1}


def test_what_waits_while_nodes_are_restarted_in_good_order(cluster: Cluster) -> None:
    """What no topic takes goes to subscribers, wherever they are."""
    watcher = Client(cluster, "n1", "watcher")
    watcher.paho.subscribe("free/#", 0)
    assert watcher.subscribed.wait(WAIT_S)
    expected = set()
    for number, name in enumerate(cluster.names):
        client = Client(cluster, name, f"t-{name}")
        client.delay(4, f"free/{name}", b"%d" % number, 1)
        for second in range(60):
            payload = b"%s-%d" % (name.encode(), second)
            client.delay(second // 4, "d/x", payload, 1)
            expected.add(payload)
        client.close()
    until(lambda: len(watcher.payloads) == 3, WAIT_S)
    assert sorted(watcher.payloads) == [b"0", b"1", b"2"]
    watcher.close()
    for name in cluster.names:
        assert cluster.terminate(name) == 0
        cluster.start_node(name)
        settled(cluster)
    until(lambda: set(stored(cluster)) == expected, WAIT_S)
    time.sleep(3)
    assert set(stored(cluster).values()) == {1}
