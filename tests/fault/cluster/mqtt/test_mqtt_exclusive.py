"""Goal: an exclusive subscription has one holder in the cluster, until its session ends or its node
dies.

Method: three real processes. Clients of all nodes ask for the same filters, at the same time, too;
holders move, leave, and die with their nodes, and so do the homes of filters.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import paho.mqtt.client as paho
import pytest
from paho.mqtt.reasoncodes import ReasonCode

from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import until_in_sync
from tests.support.mqtt.faithful_paho import Paho

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
CONFIG = """
[topics]
replication = 3
min_in_sync = 2
"""
WAIT_S = 90
HELD = 0x97
HOMES = "__mqtt_homes"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("exclusive"), config=CONFIG) as running:
        until(lambda: shared(running), WAIT_S)
        until_in_sync(running, HOMES)
        yield running


def shared(cluster: Cluster) -> bool:
    """Whether the nodes share sessions."""
    probes = [Client(cluster, node, "probe") for node in cluster.names]
    time.sleep(0.5)
    left = sum(not one.gone for one in probes)
    for one in probes:
        one.end()
    return left == 1


class Client:
    def __init__(self, cluster: Cluster, node: str, name: str, *, kept: bool = True) -> None:
        self._cluster = cluster
        self.node = node
        self.codes: queue.Queue[int] = queue.Queue()
        self.connects: queue.Queue[bool] = queue.Queue()
        client = self.client = Paho(
            paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        client.on_subscribe = self._subscribed
        client.on_unsubscribe = lambda *_: self.codes.put(-1)
        self.gone = False
        client.on_disconnect = self._left
        client.on_connect = lambda c, u, flags, *_: self.connects.put(flags.session_present)
        self.properties = paho.Properties(paho.PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        self.properties.SessionExpiryInterval = 3600 if kept else 0
        self.present = self.go(node)

    def go(self, node: str) -> bool:
        """Break the connection, if there is one, and come to a node."""
        found = self.client.socket()
        if found is not None:
            found.shutdown(socket.SHUT_RDWR)
            until(lambda: self.gone, WAIT_S)
            self.client.loop_stop()
            self.client._reset_sockets(sockpair_only=True)  # paho makes others, and forgets these
        self.gone = False
        port = int(self._cluster.address(node, "mqtt").rsplit(":", 1)[1])
        self.client.connect("127.0.0.1", port, clean_start=False, properties=self.properties)
        self.client.loop_start()
        return self.connects.get(timeout=WAIT_S)

    def _left(self, *_: object) -> None:
        self.gone = True

    def _subscribed(
        self, client: object, data: object, number: int, codes: list[ReasonCode], *_: object
    ) -> None:
        self.codes.put(codes[0].value)

    def asks(self, topic_filter: str) -> int:
        """The code that it is answered."""
        self.client.subscribe(f"$exclusive/{topic_filter}", 1)
        return self.codes.get(timeout=WAIT_S)

    def leaves(self, topic_filter: str) -> None:
        self.client.unsubscribe(f"$exclusive/{topic_filter}")
        assert self.codes.get(timeout=WAIT_S) == -1

    def end(self) -> None:
        """End connection and session."""
        ends = paho.Properties(paho.PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
        ends.SessionExpiryInterval = 0
        if not self.gone:
            self.client.disconnect(properties=ends)
        self.client.loop_stop()


def test_one_of_many_that_ask_at_once_has_it_until_it_leaves(cluster: Cluster) -> None:
    clients = [
        Client(cluster, node, f"many-{node}-{n}", kept=bool(n)) for node in cluster.names
        for n in range(2)
    ]  # fmt: skip
    filters = [f"many/{number}/+" for number in range(12)]
    for topic_filter in filters:
        with ThreadPoolExecutor(len(clients)) as pool:
            codes = list(pool.map(lambda one: one.asks(topic_filter), clients))  # noqa: B023
        assert sorted(codes) == [1, *[HELD] * (len(clients) - 1)]
        holder = clients[codes.index(1)]
        assert holder.asks(topic_filter) == 1
        holder.leaves(topic_filter)
        other = clients[codes.index(1) - 1]
        until(lambda: other.asks(topic_filter) == 1, WAIT_S)  # noqa: B023
        other.end()  # its session ends, whether it is kept or not
        clients.remove(other)
        until(lambda: clients[0].asks(topic_filter) == 1, WAIT_S)  # noqa: B023
        clients.append(
            Client(cluster, other.node, f"more-{topic_filter[5:7]}", kept=len(clients) % 2 == 0)
        )
    for one in clients:
        one.end()


def test_it_goes_where_its_session_goes(cluster: Cluster) -> None:
    holder = Client(cluster, "n1", "roams")
    others = [Client(cluster, node, f"stays-{node}") for node in cluster.names]
    assert holder.asks("roams/x") == 1
    for node in ("n2", "n3", "n1", "n3"):
        assert holder.go(node)
        deadline = time.monotonic() + 7  # longer than the node before keeps it for its session
        while time.monotonic() < deadline:
            assert [one.asks("roams/x") for one in others] == [HELD] * 3
            time.sleep(0.2)
    assert holder.asks("roams/x") == 1
    for one in (holder, *others):
        one.end()


def has_one(topic_filter: str, *clients: Client) -> bool:
    """Whether one of them has it, and has had it before it asked: on a busy machine a node may
    count as dead for a moment, and its clients lose what they had."""
    codes = [one.asks(topic_filter) for one in clients]
    return codes.count(1) == 1 and codes == [one.asks(topic_filter) for one in clients]


def test_it_is_free_when_its_node_dies_and_held_when_another_one_does(cluster: Cluster) -> None:
    filters = [f"dies/{number}" for number in range(16)]  # with homes on all nodes
    for victim in cluster.names:
        stays, goes = (name for name in cluster.names if name != victim)
        mortal = Client(cluster, victim, f"mortal-{victim}")
        holder = Client(cluster, stays, f"holder-{victim}")
        asks = Client(cluster, goes, f"asks-{victim}")
        for number, topic_filter in enumerate(filters):
            first = (mortal, holder)[number % 2]
            # Sessions of the turn before may be ending still.
            until(lambda: first.asks(topic_filter) == 1, WAIT_S)  # noqa: B023
        cluster.kill(victim)
        for topic_filter in filters[::2]:
            until(lambda: asks.asks(topic_filter) == 1, WAIT_S)  # noqa: B023
        until(lambda: all(has_one(each, holder, asks) for each in filters), WAIT_S)  # noqa: B023
        cluster.start_node(victim)
        until_in_sync(cluster, HOMES)
        back = Client(cluster, victim, f"mortal-{victim}")
        assert back.present
        clients = (holder, asks, back)
        until(lambda: all(has_one(each, *clients) for each in filters), WAIT_S)  # noqa: B023
        for one in (holder, asks, back):
            one.end()
