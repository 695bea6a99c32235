"""Goal: what three nodes keep together survives what happens to one of them, and to all at once.

Method: real processes. Idempotent producers, MQTT publishers of QoS 1 through every node and
readers go on while nodes are killed, stopped and cut off. At the end every acknowledged record is
where it was said to be, no offset is left out, no reader was given what is not there, and nothing
that idempotent producers sent is stored twice. One cluster for all tests, each with its own topic.
`LAKEMQ_FAULT_ROUNDS=10` kills ten leaders in a row; with 2 or more all faults are tried.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.cli.commands import app
from lakemq.testing import Cluster, History
from tests.support.cluster.load import Load, MqttLoad, until
from tests.support.cluster.topics import leader, made, partitions, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
long_run = pytest.mark.skipif(ROUNDS < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2")
UNREACHABLE_MAX_S = 20.0
"""Clients of a node that does not answer reach another in half of it, on a busy machine too."""
CONFIG = """
[cluster]
replica_lag_max_ms = 1500
[[plugins.mqtt.bindings]]
filter = "both/#"
topic = "both"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """Whole at the begin and at the end of each test."""
    running.history = History()
    yield running
    running.heal()
    for name in running.names:
        running.resume(name)
        if name not in running.running:
            running.start_node(name)


def read_until(
    client: lakemq.SyncClient, topic: str, last: bytes, seen: list[bytes | None]
) -> None:
    """Values of partition 0, up to `last`, by one stream of the blocking client."""
    for record in client.consume(topic, partition=0, follow=True):
        seen.append(record.value)
        if record.value == last:
            return


def test_leaders_are_killed_one_after_the_other(cluster: Cluster) -> None:
    topic = made(cluster, "both")
    load, mqtt = Load(cluster, topic), MqttLoad(cluster, topic)
    load.start()
    mqtt.start()
    load.until_acked(100)
    gaps = []
    for _ in range(ROUNDS):
        name = leader(cluster, topic)
        load.begin_gap()
        cluster.kill(name)
        load.until_acked(100)
        gaps.append(load.gap_max_s)
        cluster.start_node(name)
        until_in_sync(cluster, topic)
    mqtt.stop()
    load.stop()
    again = mqtt.assert_stored()
    print(
        f"{cluster.history.acks} acks to the SDK, {len(mqtt.acked)} to MQTT, {again} messages "
        f"twice; {ROUNDS} kills, longest time without an ack {[f'{gap:.2f}' for gap in gaps]} s"
    )


def test_a_leader_that_was_stopped_says_nothing_old(cluster: Cluster) -> None:
    topic = made(cluster, unique("stopped"))
    name = leader(cluster, topic)
    load = Load(cluster, topic, bootstrap=cluster.address(name))
    load.start()
    load.until_each_acked(100)
    cluster.pause(name)
    until(lambda: all(each.leader != name for each in partitions(cluster, topic)))
    began = time.monotonic()
    load.until_each_acked(100, UNREACHABLE_MAX_S)
    print(f"every producer goes on {time.monotonic() - began:.1f} s after another node leads")
    cluster.resume(name)
    load.until_each_acked(100)
    until_in_sync(cluster, topic)
    load.stop()
    cluster.assert_no_loss()


def test_clients_leave_a_leader_that_is_cut_off(cluster: Cluster) -> None:
    topic = made(cluster, unique("alone"))
    name = leader(cluster, topic)
    load = Load(cluster, topic, bootstrap=cluster.address(name))
    with lakemq.connect(cluster.address(name), timeout_s=60) as blocking:
        load.start()
        load.until_each_acked(100)
        cluster.send(blocking, topic, b"before", partition=0)
        seen: list[bytes | None] = []
        reader = threading.Thread(target=read_until, args=(blocking, topic, b"cut off", seen))
        reader.start()
        until(lambda: b"before" in seen)
        cluster.isolate(name)
        until(lambda: all(each.leader != name for each in partitions(cluster, topic)))
        began = time.monotonic()
        cluster.send(blocking, topic, b"cut off", partition=0)
        load.until_each_acked(100, UNREACHABLE_MAX_S)
        print(f"everybody goes on {time.monotonic() - began:.1f} s after another node leads")
        reader.join(UNREACHABLE_MAX_S)
        assert seen[-1] == b"cut off" and len(seen) == len(set(seen))
        assert time.monotonic() - began < UNREACHABLE_MAX_S
    cluster.heal()
    load.until_each_acked(100)
    until_in_sync(cluster, topic)
    load.stop()
    cluster.assert_no_loss()


def test_a_follower_cut_off_leaves_and_comes_back(cluster: Cluster) -> None:
    topic = made(cluster, unique("cut"), 1)
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    cut = next(name for name in cluster.names if name != leader(cluster, topic))
    began = time.monotonic()
    cluster.isolate(cut)
    until_in_sync(cluster, topic, 2)
    print(f"left the in-sync set after {time.monotonic() - began:.1f} s")
    load.until_acked(100)
    cluster.heal()
    print(f"came back after {until_in_sync(cluster, topic):.1f} s")
    load.stop()
    cluster.assert_no_loss()


def test_an_operator_lets_a_replica_lead_that_lacks_records(cluster: Cluster) -> None:
    topic = made(cluster, unique("unclean"), 1, replication=2, min_in_sync=1)
    (partition,) = partitions(cluster, topic)
    leads = partition.leader
    (behind,) = set(partition.replicas) - {leads}
    assert leads is not None
    with cluster.client() as client:
        for number in range(10):
            client.send(topic, b"%d" % number)
        cluster.kill(behind)
        until_in_sync(cluster, topic, 1)
        for number in range(5):
            client.send(topic, b"lost %d" % number)
    assert cluster.terminate(leads) == 0
    cluster.start_node(behind)
    until(lambda: partitions(cluster, topic)[0].leader is None)
    (other,) = set(cluster.names) - {leads, behind}
    place = f"{topic}/0"
    command = ["partition", "elect", place, "--unclean", "-a", cluster.address(other, "meta")]
    said = CliRunner().invoke(app, command, input=f"{place}\n")
    assert said.exit_code == 0, said.output
    assert f"{behind} has offsets 0..9, the last of leader epoch" in said.output
    assert f"With {behind} as its leader it goes on at offset 10" in said.output
    ((_, stored),) = cluster.stored(topic).items()
    assert [seen.value for seen in stored] == [b"%d" % number for number in range(10)]


@long_run
def test_a_follower_without_its_disk_copies_everything(cluster: Cluster) -> None:
    topic = made(cluster, unique("disk"))
    load = Load(cluster, topic)
    load.start()
    load.until_acked(500)
    name = next(name for name in cluster.names if name != leader(cluster, topic))
    cluster.lose_disk(name)
    load.until_acked(100)
    cluster.start_node(name)
    until_in_sync(cluster, topic)
    load.stop()
    # Now what the new disk has must be enough, with any one of the others.
    other = next(each for each in cluster.names if each != name)
    cluster.kill(other)
    cluster.assert_no_loss()


@long_run
def test_all_nodes_are_killed_at_once(cluster: Cluster) -> None:
    topic = made(cluster, unique("all"))
    load = Load(cluster, topic)
    load.start()
    for _ in range(ROUNDS):
        load.until_acked(300)
        cluster.kill(*cluster.names)
        cluster.start()
        until_in_sync(cluster, topic)
    load.until_acked(100)
    load.stop()
    cluster.assert_no_loss()


@long_run
def test_a_node_that_stops_in_order_costs_next_to_nothing(cluster: Cluster) -> None:
    topic = made(cluster, unique("order"))
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    name = leader(cluster, topic)
    load.begin_gap()
    assert cluster.terminate(name) == 0
    load.until_acked(100)
    gap_s = load.gap_max_s
    assert all(each.leader != name for each in partitions(cluster, topic))
    cluster.start_node(name)
    until_in_sync(cluster, topic)
    load.stop()
    cluster.assert_no_loss()
    print(f"longest time without an ack: {gap_s:.2f} s")
