"""Goal: a shared group whose members are on three nodes gets each message once in calm times, and
at least once when a node is killed.

Method: real processes and paho clients, the members with sessions that end with their connection.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from lakemq.testing.cluster import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import made

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
NAMES = ("n1", "n2", "n3")
SETTLED_S = 3.0
"""Longer than nodes hear of each other's members, and go by what they knew before."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("shared-groups")) as found:
        made(found, "mqtt")
        time.sleep(SETTLED_S)
        yield found


class Members:
    """One on each node."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.got: dict[str, Counter[bytes]] = {node: Counter() for node in NAMES}
        self._lock = threading.Lock()
        self._subscribed = 0
        self.clients = [self._client(cluster, node, group) for node in NAMES]
        until(lambda: self._subscribed == len(NAMES))
        time.sleep(SETTLED_S)

    def _client(self, cluster: Cluster, node: str, group: str) -> paho.Client:
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, f"{group}-{node}", protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )  # fmt: skip
        client.on_message = lambda _c, _u, message: self._take(node, message.payload)
        client.on_subscribe = lambda *_: self._count()
        host, _, port = cluster.address(node, "mqtt").rpartition(":")
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 0
        client.connect(host, int(port), properties=properties)
        client.loop_start()
        client.subscribe(f"$share/{group}/{group}/#", 1)
        return client

    def _count(self) -> None:
        self._subscribed += 1

    def _take(self, node: str, payload: bytes) -> None:
        with self._lock:
            self.got[node][payload] += 1

    def all(self) -> Counter[bytes]:
        with self._lock:
            return sum(self.got.values(), Counter[bytes]())

    def close(self) -> None:
        for client in self.clients:
            client.disconnect()
            client.loop_stop()


def publish(cluster: Cluster, node: str, group: str, payloads: list[bytes], pause_s: float) -> None:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"{group}-sends")
    host, _, port = cluster.address(node, "mqtt").rpartition(":")
    client.connect(host, int(port))
    client.loop_start()
    infos = []
    for number, payload in enumerate(payloads):
        infos.append(client.publish(f"{group}/{number % 7}", payload, 1))
        time.sleep(pause_s)
    for info in infos:
        info.wait_for_publish(60)
    client.disconnect()
    client.loop_stop()


def test_each_message_comes_to_one_member_of_all_nodes(cluster: Cluster) -> None:
    members = Members(cluster, "calm")
    payloads = [b"%d" % number for number in range(600)]
    publish(cluster, "n2", "calm", payloads, 0.002)
    until(lambda: len(members.all()) == len(payloads))
    time.sleep(2)
    assert members.all() == Counter(payloads)
    shares = [sum(each.values()) for each in members.got.values()]
    assert min(shares) > 100, "each node has one of three members"
    members.close()


def test_none_is_lost_when_a_node_dies(cluster: Cluster) -> None:
    members = Members(cluster, "killed")
    payloads = [b"%d" % number for number in range(800)]
    sender = threading.Thread(target=publish, args=(cluster, "n1", "killed", payloads, 0.01))
    sender.start()
    time.sleep(3)
    cluster.kill("n3")
    sender.join()
    until(lambda: len(members.all()) == len(payloads), 60)
    assert set(members.all()) == set(payloads)
    members.close()
    cluster.start_node("n3")
