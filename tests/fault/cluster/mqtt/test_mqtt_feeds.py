"""Goal: a subscriber at any node gets every QoS 1 message that was acknowledged, in order per
client and name, wherever the partition of its name is, and whoever else dies.

Method: real processes, topics with one and two replicas on four nodes, subscribers and publishers
of paho at each of them. `LAKEMQ_FAULT_ROUNDS=3`: three leaders are killed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from lakemq.testing import Cluster
from tests.support.cluster.load import MqttLoad, until
from tests.support.cluster.topics import made, partitions, until_in_sync

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
NODES = 4
CONFIG = """
[[plugins.mqtt.bindings]]
filter = "one/#"
topic = "one"
[[plugins.mqtt.bindings]]
filter = "two/#"
topic = "two"
[[plugins.mqtt.bindings]]
filter = "three/#"
topic = "three"
[[plugins.mqtt.bindings]]
filter = "four/#"
topic = "four"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("feeds"), NODES, config=CONFIG) as running:
        yield running


class Subscriber:
    """Reads in a thread of its own, at one node, and connects to it again when it is back."""

    def __init__(self, cluster: Cluster, node: str, topic_filter: str) -> None:
        self.node = node
        self.heard: list[tuple[str, bytes]] = []
        self.granted = threading.Event()
        self._cluster, self._filter = cluster, topic_filter
        self._stopping = threading.Event()
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=f"sub-{node}-{topic_filter[:6]}",
            clean_session=False,
        )  # fmt: skip
        self._client.on_connect = lambda client, *_: client.subscribe(self._filter, qos=1)
        self._client.on_subscribe = self._subscribed
        self._client.on_message = lambda _, __, got: self.heard.append((got.topic, got.payload))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _subscribed(
        self, client: object, data: object, packet: int, codes: list[ReasonCode], *_: object
    ) -> None:
        assert [code.value for code in codes] == [1], codes
        self.granted.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._client.socket() is None:
                host, _, port = self._cluster.address(self.node, "mqtt").rpartition(":")
                with suppress(OSError):
                    self._client.connect(host, int(port), 10)
                time.sleep(0.05)
            self._client.loop(0.05)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._client.disconnect()

    def assert_heard(self, acked: set[bytes]) -> None:
        """Every message that was acknowledged."""
        deadline = time.monotonic() + 60
        while missing := sorted(acked - {payload for _, payload in self.heard}):
            text = f"{self.node} lacks {len(missing)} of {len(acked)}: {missing[:5]}"
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    def assert_in_order(self, topic: str) -> None:
        """As they lie in their partition, which has all messages of a name: a publisher that lost
        its node may have sent some again, and out of order."""
        offsets: dict[bytes | None, tuple[int, int]] = {}
        for place, records in self._cluster.stored(topic).items():
            for record in records:
                offsets.setdefault(record.value, (place.partition, record.offset))
        last: dict[int, int] = {}
        for payload in dict.fromkeys(payload for _, payload in self.heard):
            partition, offset = offsets[payload]
            assert offset > last.get(partition, -1), (self.node, payload)
            last[partition] = offset


def subscribers(cluster: Cluster, topic: str) -> list[Subscriber]:
    found = [Subscriber(cluster, node, f"{topic}/#") for node in cluster.names]
    for each in found:
        assert each.granted.wait(20), f"{each.node} did not answer"
    return found


def test_every_node_hears_partitions_that_it_does_not_have(cluster: Cluster) -> None:
    topic = made(cluster, "one", 4, replication=1, min_in_sync=1)
    leaders = {each.leader for each in partitions(cluster, topic)}
    assert len(leaders) > 1, "the partitions lie on several nodes"
    heard = subscribers(cluster, topic)
    load = MqttLoad(cluster, topic)
    load.start()
    load_more(load, 300)
    load.stop()
    for each in heard:
        each.assert_heard(load.acked)
        each.stop()
        each.assert_in_order(topic)
        assert len(each.heard) == len({payload for _, payload in each.heard})


def test_a_subscription_misses_nothing_that_is_published_behind_it(cluster: Cluster) -> None:
    """Leaders leave out what a node did not want before."""
    topic = made(cluster, "four", 4, replication=1, min_in_sync=1)
    load = MqttLoad(cluster, topic)
    load.start()
    load_more(load, 100)
    for node in cluster.names:
        for number in range(NODES):
            subscriber = Subscriber(cluster, node, f"{topic}/{number}")
            assert subscriber.granted.wait(20)
            mine = b"mqtt-%d-" % number
            last = max(numbers(load.acked, mine))
            load_more(load, 150)
            # Those behind the last acknowledged one may have been under way.
            acked = {each for each in load.acked.copy() if each.startswith(mine)}
            subscriber.assert_heard({each for each in acked if int(each[len(mine) :]) > last + 20})
            subscriber.stop()
    load.stop()


def numbers(values: set[bytes], prefix: bytes) -> list[int]:
    return [int(each[len(prefix) :]) for each in values.copy() if each.startswith(prefix)]


def test_what_no_topic_takes_reaches_every_node(cluster: Cluster) -> None:
    heard = [Subscriber(cluster, node, "loose/+") for node in cluster.names]
    assert all(each.granted.wait(20) for each in heard)
    host, _, port = cluster.address("n1", "mqtt").rpartition(":")
    publisher = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="loose")
    publisher.connect(host, int(port), 10)
    publisher.loop_start()
    # SUBACK does not wait until other nodes know what is wanted.
    while not all(each.heard for each in heard):
        publisher.publish("loose/1", b"probe", qos=0)
        time.sleep(0.05)
    sent = [b"loose-%d" % number for number in range(200)]
    for value in sent:
        publisher.publish("loose/1", value, qos=0)
    for each in heard:
        each.assert_heard(set(sent))
        each.stop()
        got = [payload for _, payload in each.heard if payload != b"probe"]
        assert got == sent, "in order, and once"
    publisher.disconnect()
    publisher.loop_stop()


def test_feeds_go_on_when_leaders_are_killed(cluster: Cluster) -> None:
    topic = made(cluster, "two", 4, replication=2, min_in_sync=1)
    heard = {each.node: each for each in subscribers(cluster, topic)}
    load = MqttLoad(cluster, topic)
    load.start()
    load_more(load, 100)
    for number in range(ROUNDS):
        name = partitions(cluster, topic)[number % 4].leader
        assert name is not None
        if (lost := heard.pop(name, None)) is not None:  # its session dies with its node
            lost.stop()
        cluster.kill(name)
        load_more(load, 100)
        cluster.start_node(name)
        until_in_sync(cluster, topic, 2)
    load_more(load, 100)
    load.stop()
    assert heard
    for each in heard.values():
        each.assert_heard(load.acked)
        each.stop()
        each.assert_in_order(topic)


def load_more(load: MqttLoad, count: int) -> None:
    goal = len(load.acked) + count
    until(lambda: len(load.acked) >= goal)


def test_a_restarted_node_hears_what_others_lead(cluster: Cluster) -> None:
    topic = made(cluster, "three", 4, replication=1, min_in_sync=1)
    cluster.kill("n2")
    cluster.start_node("n2")
    until_in_sync(cluster, topic, 1)
    subscriber = Subscriber(cluster, "n2", f"{topic}/#")
    assert subscriber.granted.wait(20)
    load = MqttLoad(cluster, topic)
    load.start()
    load_more(load, 200)
    load.stop()
    subscriber.assert_heard(load.acked)
    subscriber.stop()
    subscriber.assert_in_order(topic)
