"""Goal: what operators do to a cluster, and what happens to its machines and links, costs no
acknowledged record and, where enough replicas are left, no more than a moment.

Method: real processes and the commands of docs/cluster.md, while idempotent producers, a reader and
MQTT publishers go on; at the end every record that anybody was told of is looked for. One cluster
for all tests, whose fourth node comes and goes. `LAKEMQ_FAULT_ROUNDS=2` tries the longer ones too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from lakemq.local_cluster.process import NodeFailed
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.testing import Cluster, History
from tests.support.cluster.load import Load, MqttLoad, until
from tests.support.cluster.topics import ask, made, nodes, partitions, until_in_sync
from tests.support.node.node import unique
from tests.support.node.small_disk import grow, small_disk

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
long_run = pytest.mark.skipif(ROUNDS < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2")
ADDED = "n4"
ACK_WAIT_S = 3
SMALL = "n3"
"""The node whose disk is small."""
SMALL_MIB = 128
FREE_MIN = 32 * 1024 * 1024
CONFIG = f"""
[cluster]
replica_lag_max_ms = 1500
ack_wait_ms = {ACK_WAIT_S * 1000}
[plugins.journal]
free_min_bytes = {FREE_MIN}
maintenance_interval_ms = 300
[topics]
replication = 3
[[plugins.mqtt.bindings]]
filter = "grow/#"
topic = "grow"
[[plugins.mqtt.bindings]]
filter = "rolling/#"
topic = "rolling"
[[plugins.mqtt.bindings]]
filter = "refused/#"
topic = "refused"
"""


class Running(Cluster):
    """Four nodes, of which three are started; the disk of one can be filled."""

    ballast: Path | None = None
    """A file on the small disk; None: it has none, as nobody but root may mount one."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("operations"), 4, config=CONFIG)
    with ExitStack() as stack:
        try:
            disk = small_disk(made.nodes[SMALL].data_dir, SMALL_MIB)
            made.ballast = stack.enter_context(disk)
        except pytest.skip.Exception:
            made.ballast = None
        stack.callback(made.stop)
        made.start(*(name for name in made.names if name != ADDED))
        yield made


@pytest.fixture
def cluster(running: Running) -> Iterator[Running]:
    """The first three nodes serve at the begin and at the end of each test, the fourth may."""
    running.history = History()
    yield running
    running.heal()
    if running.ballast is not None:
        running.ballast.unlink(missing_ok=True)
    for name in running.names:
        if name != ADDED and name not in running.running:
            running.start_node(name)


def command(cluster: Cluster, *words: str) -> str:
    """What `lakemq` prints; it must succeed."""
    found = subprocess.run(
        [sys.executable, "-m", "lakemq", *words, *("--address", cluster.meta[0])],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert found.returncode == 0, f"{words}: {found.stdout}{found.stderr}"
    return found.stdout


def placed(cluster: Cluster, topic: str, *replicas: str) -> str:
    """A topic of one partition, on these nodes, led by the first of them."""
    made(cluster, topic, 1, len(replicas))

    async def move(client: RemoteClient) -> None:
        _, topics = await client.topics()
        (partition,) = next(each.partitions for each in topics if each.name == topic)
        await client.move([(topic, 0, partition.partition_epoch, replicas)])

    if partitions(cluster, topic)[0].replicas != replicas:
        ask(cluster, move)
        until(lambda: set(partitions(cluster, topic)[0].replicas) == set(replicas))
        until_in_sync(cluster, topic, len(replicas))
    if partitions(cluster, topic)[0].leader != replicas[0]:
        command(cluster, "partition", "elect", f"{topic}/0")
    until(lambda: partitions(cluster, topic)[0].leader == replicas[0])
    return topic


def serve_added(cluster: Cluster) -> None:
    """The fourth node is there and active."""
    if ADDED not in cluster.running:
        cluster.start_node(ADDED)
    until(lambda: ADDED in nodes(cluster) and nodes(cluster)[ADDED].state == "active")


@long_run
def test_a_node_is_added_and_gets_its_share(cluster: Running) -> None:
    topic = made(cluster, "grow", 4)
    load, publishers = Load(cluster, topic), MqttLoad(cluster, topic)
    load.start()
    publishers.start()
    load.until_acked(100)
    serve_added(cluster)
    began = time.monotonic()
    # Partitions that are nearly empty come to a new node by themselves, others by this.
    command(cluster, "cluster", "rebalance")
    until(lambda: sum(ADDED in each.replicas for each in partitions(cluster, topic)) >= 2)
    until_in_sync(cluster, topic)
    print(f"has its share after {time.monotonic() - began:.1f} s")
    load.until_acked(100)
    publishers.stop()
    load.stop()
    again = publishers.assert_stored()
    print(f"{cluster.history.acks} + {len(publishers.acked)} acks, {again} messages twice")


@long_run
def test_all_nodes_restart_one_after_the_other(cluster: Running) -> None:
    topic = made(cluster, "rolling")
    load, publishers = Load(cluster, topic), MqttLoad(cluster, topic)
    load.start()
    publishers.start()
    load.until_acked(100)
    gaps = []
    for name in cluster.running:
        load.begin_gap()
        assert cluster.terminate(name) == 0
        load.until_acked(50)
        cluster.start_node(name)
        until_in_sync(cluster, topic)
        load.until_acked(50)
        gaps.append(load.gap_max_s)
    publishers.stop()
    load.stop()
    again = publishers.assert_stored()
    print(
        f"longest times without an ack: {[f'{gap:.2f}' for gap in gaps]} s; {cluster.history.acks} "
        f"+ {len(publishers.acked)} acks, {again} messages twice"
    )


def test_a_full_follower_leaves_and_comes_back(cluster: Running) -> None:
    if cluster.ballast is None:
        pytest.skip("no small file system can be mounted here")
    topic = placed(cluster, unique("full"), "n1", "n2", SMALL)
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    load.begin_gap()
    grow(cluster.ballast, FREE_MIN // 2)
    left_s = until_in_sync(cluster, topic, 2)
    load.until_acked(300)
    assert load.gap_max_s < 2, "those that have room acknowledge"
    cluster.ballast.unlink()
    back_s = until_in_sync(cluster, topic)
    load.until_acked(100)
    load.stop()
    cluster.assert_no_loss()
    print(
        f"left after {left_s:.1f} s, back after {back_s:.1f} s, "
        f"longest time without an ack {load.gap_max_s:.2f} s"
    )


@long_run
def test_a_full_leader_gives_its_leadership_away(cluster: Running) -> None:
    if cluster.ballast is None:
        pytest.skip("no small file system can be mounted here")
    topic = placed(cluster, unique("full"), SMALL, "n1", "n2")
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    load.begin_gap()
    grow(cluster.ballast, FREE_MIN // 2)
    until(lambda: partitions(cluster, topic)[0].leader != SMALL)
    load.until_acked(300)
    gap_s = load.gap_max_s
    until_in_sync(cluster, topic, 2)
    cluster.ballast.unlink()
    back_s = until_in_sync(cluster, topic)
    load.until_acked(100)
    load.stop()
    cluster.assert_no_loss()
    print(f"longest time without an ack {gap_s:.2f} s, in sync after {back_s:.1f} s")


@pytest.mark.parametrize("way", ["heartbeats", "answers"])
def test_a_broker_and_the_metaservice_are_cut_one_way(cluster: Running, way: str) -> None:
    """The node is heard by other brokers and by the other members, and clients reach it."""

    async def leading(client: RemoteClient) -> str | None:
        return (await client.status()).leader_id

    controller = ask(cluster, leading)
    assert controller is not None
    cut, third = [name for name in cluster.names[:3] if name != controller]
    topic = placed(cluster, unique(way), cut, controller, third)
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    load.begin_gap()
    ends = (cut, controller) if way == "heartbeats" else (controller, cut)
    cluster.cut(*ends, both=False, listeners=["meta"])
    took_s = until(lambda: partitions(cluster, topic)[0].leader != cut)
    load.until_acked(200)
    gap_s = load.gap_max_s
    cluster.heal()
    until_in_sync(cluster, topic)
    load.until_acked(100)
    load.stop()
    cluster.assert_no_loss()
    print(f"another leads after {took_s:.1f} s, longest time without an ack {gap_s:.2f} s")


@long_run
def test_slow_links_cost_time_and_no_leadership(cluster: Running) -> None:
    topic = placed(cluster, unique("slow"), "n1", "n2", "n3")
    (before,) = partitions(cluster, topic)
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    load.begin_gap()
    cluster.slow("n1", "n2", 0.1)
    cluster.slow("n2", "n3", 0.1)
    cluster.slow("n1", "n3", 0.3)
    for _ in range(10):
        load.until_acked(30)
        (now,) = partitions(cluster, topic)
        assert (now.leader, now.leader_epoch) == (before.leader, before.leader_epoch)
        assert len(now.in_sync) == 3
    gap_s = load.gap_max_s
    cluster.heal()
    load.until_acked(100)
    load.stop()
    cluster.assert_no_loss()
    print(f"longest time without an ack: {gap_s:.2f} s")


def test_an_mqtt5_publisher_is_told_that_too_few_are_in_sync(cluster: Running) -> None:
    """Both replicas must have a record, and one of them is gone: PUBACK says 0x83."""
    made(cluster, "refused", 1, 2, 2)
    (partition,) = partitions(cluster, "refused")
    follower = next(name for name in partition.replicas if name != partition.leader)
    assert partition.leader is not None
    answered: list[int] = []
    acked = threading.Condition()

    def on_publish(_c: object, _d: object, _m: int, code: ReasonCode, _p: Properties) -> None:
        with acked:
            answered.append(code.value)
            acked.notify()

    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="refused", protocol=mqtt.MQTTv5)
    client.on_publish = on_publish
    host, _, port = cluster.address(partition.leader, "mqtt").rpartition(":")
    client.connect(host, int(port))
    client.loop_start()

    def published(value: bytes) -> tuple[int, float]:
        """Reason code, and how long it took (s)."""
        began = time.monotonic()
        with acked:
            client.publish("refused/a", value, qos=1)
            assert acked.wait(60), "no PUBACK"
        return answered[-1], time.monotonic() - began

    try:
        assert published(b"first")[0] in (0x00, 0x10)
        cluster.kill(follower)
        # It is stored at the leader, and waits for the other one; unless the leader, on a busy
        # machine, has heard by now that it is gone.
        code, took_s = published(b"waits")
        assert code == 0x83
        assert took_s < 5 * ACK_WAIT_S
        until(lambda: len(partitions(cluster, "refused")[0].in_sync) == 1)
        # It is known by now that it could not be copied, so it is not stored at all, unless the
        # other one is back in time.
        code, refused_s = published(b"refused")
        assert code == 0x83
        print(f"0x83 after {took_s:.1f} s, then after {refused_s:.3f} s")
        cluster.start_node(follower)
        until_in_sync(cluster, "refused", 2)
        # Its leader may hear of that a moment later than the test.
        until(lambda: published(b"last")[0] in (0x00, 0x10))
    finally:
        client.disconnect()
        client.loop_stop()
    (records,) = cluster.stored("refused").values()
    values = [each.value for each in records]
    # What is not acknowledged may be there: its publisher sends it again.
    kept = dict.fromkeys(each for each in values if each != b"waits")
    assert list(kept) == [b"first", b"last"]


@long_run
def test_a_node_is_decommissioned(cluster: Running) -> None:
    topic = made(cluster, unique("shrink"), 4)
    serve_added(cluster)
    command(cluster, "cluster", "rebalance")
    until(lambda: any(ADDED in each.replicas for each in partitions(cluster, topic)))
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    load.begin_gap()
    said = command(cluster, "node", "decommission", ADDED, "--yes")
    assert f"{ADDED} holds nothing" in said
    assert not any(ADDED in each.replicas for each in partitions(cluster, topic))
    assert cluster.terminate(ADDED) == 0
    until(lambda: ADDED not in nodes(cluster))
    until_in_sync(cluster, topic)
    load.until_acked(100)
    load.stop()
    cluster.assert_no_loss()
    print(f"longest time without an ack: {load.gap_max_s:.2f} s")
    # Its place in the MetaService's group is gone, so it comes back as a new node, and is told so.
    began = time.monotonic()
    with pytest.raises(NodeFailed, match=f"'{ADDED}' is not a member any more.*--join"):
        cluster.start_node(ADDED)
    print(f"the old folder is refused after {time.monotonic() - began:.1f} s")
    shutil.rmtree(cluster.nodes[ADDED].data_dir)
    serve_added(cluster)


@long_run
def test_a_dead_node_is_decommissioned(cluster: Running) -> None:
    topic = made(cluster, unique("dead"), 4)
    serve_added(cluster)
    command(cluster, "cluster", "rebalance")
    until(lambda: any(ADDED in each.replicas for each in partitions(cluster, topic)))
    load = Load(cluster, topic)
    load.start()
    load.until_acked(100)
    with pytest.raises(AssertionError, match="is alive: stop it first"):
        command(cluster, "node", "remove", ADDED)
    cluster.kill(ADDED)
    until(lambda: nodes(cluster)[ADDED].state == "fenced")
    with pytest.raises(AssertionError, match="holds .* partition replicas"):
        command(cluster, "node", "remove", ADDED)
    said = command(cluster, "node", "decommission", ADDED, "--yes")
    assert f"removed {ADDED}" in said
    assert ADDED not in nodes(cluster)
    until_in_sync(cluster, topic)
    load.until_acked(100)
    load.stop()
    cluster.assert_no_loss()
    shutil.rmtree(cluster.nodes[ADDED].data_dir)


@long_run
def test_a_dead_node_is_replaced_after_a_while(tmp_path: Path) -> None:
    """A cluster of its own: in the other one, nodes are down for longer than that."""
    config = "[meta]\nreplace_after_s = 3.0\n"
    with Cluster(tmp_path / "replaced", 4, config=config, links=False) as cluster:
        topic = made(cluster, "replaced", 4)
        load = Load(cluster, topic)
        load.start()
        load.until_acked(100)
        name = next(
            each.replicas[1] for each in partitions(cluster, topic) if ADDED in each.replicas
        )
        began = time.monotonic()
        cluster.kill(name)
        until(lambda: not any(name in each.replicas for each in partitions(cluster, topic)))
        took_s = time.monotonic() - began
        assert took_s > 3
        until_in_sync(cluster, topic)
        load.until_acked(100)
        # It comes back with what it had, and keeps none of it.
        cluster.start_node(name)
        until(lambda: nodes(cluster)[name].state == "active")
        load.until_acked(100)
        load.stop()
        cluster.assert_no_loss()
        assert not any(name in each.replicas for each in partitions(cluster, topic))
        print(f"replaced after {took_s:.1f} s")
