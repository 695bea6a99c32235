"""Goal: what a disk forgets or damages on one node is whole again, with the help of the others, and
readers notice nothing.

Method: real processes, and bytes that are changed in their files.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import TopicDescription
from lakemq.testing import Cluster, History
from tests.support.cluster.load import until
from tests.support.cluster.topics import ask, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
CONFIG = """
[plugins.journal]
tail_max_bytes = 0
scrub_max_bytes_per_s = 100000000
scrub_interval_ms = 1000
"""
RECORDS = 60
VALUE_BYTES = 500


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("damaged"), config=CONFIG, links=False) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    running.history = History()
    yield running
    for name in running.names:
        if name not in running.running:
            running.start_node(name)


def described(cluster: Cluster, name: str) -> TopicDescription:
    async def find(client: RemoteClient) -> TopicDescription:
        return next(each for each in (await client.topics())[1] if each.name == name)

    return ask(cluster, find)


def made(cluster: Cluster, prefix: str, replicas: int = 3) -> TopicDescription:
    """A topic of one partition, its records in sealed segments of 4 KiB and an active one."""
    name = unique(prefix)

    async def create(client: RemoteClient) -> None:
        config = {"segment_max_bytes": 4096}
        await client.create_topic(name, 1, config, replication=replicas, min_in_sync=replicas - 1)

    ask(cluster, create)
    with cluster.client() as client:
        until(lambda: name in {topic.name for topic in client.topics()})
        fill(cluster, client, name)
    until_in_sync(cluster, name, replicas)
    return described(cluster, name)


def fill(cluster: Cluster, client: lakemq.SyncClient, name: str, first: int = 0) -> None:
    for number in range(first, first + RECORDS):
        cluster.send(client, name, b"%d " % number + b"x" * VALUE_BYTES)


def folder(cluster: Cluster, node: str, topic: TopicDescription) -> Path:
    return cluster.nodes[node].data_dir / "journal" / "topics" / topic.topic_id / "0"


def segments(path: Path) -> dict[str, bytes]:
    """Base offset -> bytes, of the newest generation."""
    return {each.name[:20]: each.read_bytes() for each in sorted(path.glob("*.log"))}


def flip(path: Path, number: int) -> None:
    """A bit of a batch in the middle of a segment."""
    segment = sorted(path.glob("*.log"))[number]
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))


def metric(cluster: Cluster, node: str, name: str) -> float:
    url = f"http://{cluster.address(node, 'admin')}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith(f"lakemq_journal_{name}")
    )


def test_bits_that_flipped_are_mended_and_readers_get_every_record(cluster: Cluster) -> None:
    topic = made(cluster, "rot")
    leader = topic.partitions[0].leader
    assert leader is not None
    follower = next(name for name in cluster.names if name != leader)
    before = segments(folder(cluster, leader, topic))
    assert len(before) > 4 and before == segments(folder(cluster, follower, topic))
    counted = {name: metric(cluster, name, "repaired_segments") for name in (leader, follower)}
    flip(folder(cluster, leader, topic), 0)
    flip(folder(cluster, leader, topic), 2)
    flip(folder(cluster, follower, topic), 1)
    cluster.assert_no_loss()
    for name, repaired in ((leader, 2), (follower, 1)):
        until(
            lambda name=name: segments(folder(cluster, name, topic)) == before,
            what=f"the segments of {name} whole again",
        )
        until(
            lambda name=name, want=counted[name] + repaired: (
                metric(cluster, name, "repaired_segments") == want
            ),
            what="repairs counted",
        )
        assert metric(cluster, name, "damages_found") >= repaired
        assert metric(cluster, name, "damaged_segments") == 0
        assert metric(cluster, name, "scrubbed_bytes") > 0


def test_a_follower_that_was_damaged_while_it_was_down_copies_anew(cluster: Cluster) -> None:
    topic = made(cluster, "torn")
    leader = topic.partitions[0].leader
    name = next(each for each in cluster.names if each != leader)
    assert cluster.terminate(name) == 0
    path = folder(cluster, name, topic)
    newest = max(each for each in path.glob("*.log") if each.stat().st_size)
    with newest.open("r+b") as file:
        file.truncate(newest.stat().st_size - 1)
    with cluster.client() as client:
        fill(cluster, client, topic.name, RECORDS)
    cluster.start_node(name)
    until_in_sync(cluster, topic.name)
    leader = described(cluster, topic.name).partitions[0].leader
    assert leader is not None
    until(lambda: segments(path) == segments(folder(cluster, leader, topic)), what="equal logs")
    # What it has is enough, with any one of the others.
    cluster.kill(next(each for each in cluster.names if each != name))
    cluster.assert_no_loss()


def test_a_replica_that_moved_away_while_its_node_was_down_goes(cluster: Cluster) -> None:
    topic = made(cluster, "moved", replicas=2)
    (partition,) = topic.partitions
    stays = partition.leader
    (goes,) = set(partition.replicas) - {stays}
    (comes,) = set(cluster.names) - set(partition.replicas)
    assert stays is not None
    cluster.kill(goes)

    async def move(client: RemoteClient) -> None:
        begun = 0
        while not begun:  # The epoch changes when the dead node leaves the in-sync set.
            _, topics = await client.topics()
            found = next(each for each in topics if each.name == topic.name).partitions[0]
            target = [(topic.name, 0, found.partition_epoch, (stays, comes))]
            begun = len(await client.move(target))

    ask(cluster, move)
    until(lambda: set(described(cluster, topic.name).partitions[0].replicas) == {stays, comes})
    path = folder(cluster, goes, topic)
    assert segments(path)
    cluster.start_node(goes)
    until(lambda: not path.exists(), what="the folder of the replica that moved away gone")
    assert segments(folder(cluster, comes, topic)) == segments(folder(cluster, stays, topic))
    cluster.assert_no_loss()
