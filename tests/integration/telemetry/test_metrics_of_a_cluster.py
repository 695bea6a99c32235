"""Goal: metrics of the MetaService and of partitions tell what happens to a cluster of three."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiomqtt
import pytest

from lakemq.meta_service.api.operations import snapshot
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.testing import Cluster
from tests.support.cluster.topics import ask, made, partitions
from tests.support.node.metrics import Now, now, still, wait_for

pytestmark = pytest.mark.timeout(300)
CONFIG = """
[cluster]
replica_lag_max_ms = 1500
[[plugins.mqtt.bindings]]
filter = "alone/#"
topic = "alone"
partitions = 1
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("told"), 3, config=CONFIG) as cluster:
        yield cluster


def told(cluster: Cluster, *names: str) -> Now:
    """By these nodes, or all."""
    return now(*(cluster.address(name, "admin") for name in names or cluster.names))


def leader_of(cluster: Cluster) -> str:
    return next(name for name in cluster.names if told(cluster, name)["meta.raft.leader"])


def test_members_talk_and_one_leads(cluster: Cluster) -> None:
    before = told(cluster)
    assert before["meta.raft.leader"] == 1 and before["meta.raft.voters"] == 9
    ask(cluster, RemoteClient.topics)
    after = told(cluster)
    assert not still(before, after, "meta.raft.sent", "meta.raft.received")
    assert not still(before, after, "meta.raft.read_rounds")


def test_a_watch_is_counted_while_it_is_open(cluster: Cluster) -> None:
    async def watched() -> tuple[float, float]:
        before = (await asyncio.to_thread(told, cluster))["meta.watchers"]
        client = RemoteClient(cluster.meta, timeout_s=30)
        watch = client.watch(b"nothing/", 1)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(1)
        during = (await asyncio.to_thread(told, cluster))["meta.watchers"]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await client.close()
        return before, during

    before, during = asyncio.run(watched())
    assert during == before + 1
    wait_for(lambda: told(cluster), lambda has: has["meta.watchers"] == before)


async def publish(port: int) -> None:
    # Longer than the node waits for a leader.
    there = aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5, timeout=60)
    async with there as client, asyncio.timeout(60):
        await client.publish("alone/1", b"x", qos=1)


def test_a_node_that_goes_away_and_comes_back(cluster: Cluster) -> None:
    made(cluster, "alone", 1, replication=1, min_in_sync=1)
    made(cluster, "pair", 3, replication=2, min_in_sync=2)
    made(cluster, "three", 3, replication=3, min_in_sync=2)
    with cluster.client() as client:  # One that is nearly empty would be moved to a new node.
        for _ in range(4):
            client.send("alone", bytes(500_000))
    (away,) = partitions(cluster, "alone")[0].replicas
    rest = [name for name in cluster.names if name != away]
    before = told(cluster)
    for name in ("under_min_in_sync", "under_replicated", "eligible_used"):
        assert before[f"meta.partitions.{name}"] == 0
    cluster.kill(away)
    client = cluster.client()
    for number in range(20):
        client.create_topic(f"later-{number}", partitions=1)
    lacking = wait_for(
        lambda: told(cluster, *rest),
        lambda has: all(
            has[f"meta.partitions.{name}"] > 0
            for name in ("under_min_in_sync", "under_replicated", "eligible_used")
        ),
    )
    assert lacking["meta.raft.lag"] > 0
    asyncio.run(publish(int(cluster.address(rest[0], "mqtt").rpartition(":")[2])))
    assert told(cluster, *rest)["mqtt.publishes.not_led"] > 0
    cluster.restart(away)
    wait_for(
        lambda: told(cluster),
        lambda has: all(
            has[name] == 0
            for name in (
                 "meta.partitions.under_min_in_sync", "meta.raft.lag",
                "meta.partitions.under_replicated", "meta.partitions.eligible_used",
            )
        ),
        60,
    )  # fmt: skip


def test_another_leads_and_a_snapshot_has_an_age(cluster: Cluster) -> None:
    leader = leader_of(cluster)
    rest = [name for name in cluster.names if name != leader]
    before = told(cluster, *rest)
    assert before["meta.raft.leader"] == 0
    cluster.kill(leader)
    wait_for(lambda: told(cluster, *rest), lambda has: has["meta.raft.leader"] == 1)
    after = told(cluster, *rest)
    assert not still(before, after, "meta.raft.term", "meta.raft.elections")
    for name in rest:
        asyncio.run(snapshot(cluster.address(name, "meta"), None))
        first, second = (told(cluster, name)["meta.snapshot.age"] for _ in range(2))
        assert 0 <= first < second
