"""Goal: replicas of a tiered topic share one copy in the object store: the leader writes it, the
others adopt it and give up their local files, and every record is read, whoever leads.

Method: real processes and a folder as the store; the leader is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import ask, partitions, until_in_sync

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]
CONFIG = """
[plugins.journal]
tail_max_bytes = 0
maintenance_interval_ms = 200
checkpoint_interval_bytes = 65536
tiering_url = "{url}"
tiering_local_bytes = 0
"""
TOPIC = "tiered"
RECORDS = 160
VALUE_BYTES = 4000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def cluster(tmp_path: Path, store: Path) -> Iterator[Cluster]:
    with Cluster(
        tmp_path / "nodes", config=CONFIG.format(url=store.as_uri()), links=False
    ) as running:
        yield running


def objects(store: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each stored segment."""
    found = {each.name: each.stat() for each in store.rglob("*.log")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def local_segments(cluster: Cluster, name: str, topic_id: str) -> list[str]:
    folder = cluster.nodes[name].data_dir / "journal"
    return [each.name for each in folder.glob(f"**/{topic_id}*/0/*.log")]


def test_replicas_share_what_their_leader_stored(cluster: Cluster, store: Path) -> None:
    async def create(client: RemoteClient) -> str:
        await client.create_topic(
            TOPIC, 1, {"segment_max_bytes": 65536}, replication=3, min_in_sync=2
        )
        return next(each.topic_id for each in (await client.topics())[1] if each.name == TOPIC)

    topic_id = ask(cluster, create)
    until_in_sync(cluster, TOPIC)
    client = cluster.client()
    until(lambda: TOPIC in {topic.name for topic in client.topics()})

    def fill(first: int) -> None:
        for number in range(first, first + RECORDS):
            cluster.send(client, TOPIC, b"%d " % number + b"x" * VALUE_BYTES)

    def until_only_the_newest_are_local(names: list[str]) -> None:
        until(
            lambda: all(len(local_segments(cluster, name, topic_id)) <= 3 for name in names),
            what="the local files of all replicas given up",
        )

    fill(0)
    until_only_the_newest_are_local(list(cluster.names))
    before = objects(store)
    assert len(before) >= 5
    cluster.assert_no_loss()
    leader = partitions(cluster, TOPIC)[0].leader
    assert leader is not None
    cluster.kill(leader)
    fill(RECORDS)
    others = [name for name in cluster.names if name != leader]
    until_only_the_newest_are_local(others)
    after = objects(store)
    assert len(after) > len(before)
    assert {name: after[name] for name in before} == before, "nothing was stored twice"
    cluster.assert_no_loss()
    cluster.start_node(leader)
    until_in_sync(cluster, TOPIC)
    until_only_the_newest_are_local(list(cluster.names))
    # With what it has adopted, and with any one of the others, it is enough.
    cluster.kill(others[0])
    cluster.assert_no_loss()
