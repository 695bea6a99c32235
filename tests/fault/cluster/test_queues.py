"""Goal: a queue goes on, whatever happens to its coordinator: what was settled is never given
again, what was not is, dead letters come once, and each record has one holder of the newest
coordinator at a time.

Method: real processes. Consumers connected to different nodes settle records of partitions that all
nodes lead, while the coordinator is killed, stands still and is stopped. What they are given and
answered is a history, which `judged` reads. `LAKEMQ_FAULT_ROUNDS=5`: five times each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import lakemq
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.queues.snapshot import QUEUES_TOPIC
from lakemq.testing import Cluster
from tests.support.cluster.load import Sender, until
from tests.support.cluster.queue_load import Consumers, backlog
from tests.support.cluster.topics import made, partitions, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
long_run = pytest.mark.skipif(ROUNDS < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2")
PARTITIONS = 3
GOES_ON_MAX_S = 40.0
"""On a busy machine; in calm it is about a second."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("queues")) as running:
        yield running


def coordinator(cluster: Cluster, group: str, topic: str) -> str:
    found = partitions(cluster, QUEUES_TOPIC)
    leader = found[partition_of(f"{group}\0{topic}".encode(), len(found))].leader
    assert leader is not None
    return leader


def harm(cluster: Cluster, name: str, kind: str) -> None:
    if kind == "kill":
        cluster.kill(name)
    elif kind == "pause":
        cluster.pause(name)
    else:
        cluster.terminate(name)


@pytest.mark.parametrize(
    "kind", ["kill", pytest.param("pause", marks=long_run), pytest.param("stop", marks=long_run)]
)
def test_a_queue_goes_on_without_its_coordinator(cluster: Cluster, kind: str) -> None:
    topic, dead = made(cluster, unique("jobs"), PARTITIONS), made(cluster, unique("dead"), 2)
    group = unique("workers")
    with cluster.client(timeout_s=60) as client:
        consumers, sender = (
            Consumers(cluster, topic, dead, group),
            Sender(client, topic, PARTITIONS),
        )
        consumers.until_settled(30)
        until_in_sync(cluster, QUEUES_TOPIC)
        for _ in range(ROUNDS):
            name = coordinator(cluster, group, topic)
            harm(cluster, name, kind)
            took_s = consumers.until_settled(30, GOES_ON_MAX_S)
            print(f"{kind}: 30 more settled {took_s:.1f} s later")
            if kind == "pause":
                cluster.resume(name)
            else:
                cluster.start_node(name)
            until_in_sync(cluster, QUEUES_TOPIC)
            consumers.until_settled(30)
        sender.stop()
        ends = {
            each.partition: each.high_watermark for each in client.describe_topic(topic).partitions
        }
        until(lambda: backlog(client, group, topic) == 0, what="all settled")
        consumers.stop()
        print(consumers.judge(client, ends))


def test_attempts_settings_and_pauses_are_those_of_before(cluster: Cluster) -> None:
    """The same record again after a failover, as often tried as it was."""
    topic, dead = made(cluster, unique("jobs"), 1), made(cluster, unique("dead"), 1)
    group = unique("workers")
    with cluster.client(timeout_s=60) as client:
        client.send(topic, b"x")
        options = lakemq.QueueOptions(
            attempts_max=9, dead_letter=dead, backoff_ms=1, lock_ms=60_000, order="key"
        )
        with client.queue(topic, group=group, **options) as queue:
            for attempt in (1, 2):
                record = next(iter(queue))
                assert record.attempt == attempt
                record.nack()
            until_in_sync(cluster, QUEUES_TOPIC)
            name = coordinator(cluster, group, topic)
            cluster.kill(name)
            record = next(iter(queue))
            assert (record.offset, record.attempt) == (0, 3)
            record.ack()
        (found,) = client.admin.queues(group, topic)
        assert found.settings["lock_ms"] == 60_000 and found.settings["attempts_max"] == 9
        client.admin.alter_queue(group, topic, lock_ms=30_000)
        client.admin.reset_queue(group, topic, {0: -1})
        (found,) = client.admin.queues(group, topic)
        assert (found.settings["lock_ms"], found.partitions[0].backlog) == (30_000, 1)
        client.admin.delete_queue(group, topic)
        assert client.admin.queues(group, topic) == []
        cluster.start_node(name)
        until_in_sync(cluster, QUEUES_TOPIC)
        assert client.admin.queues(group, topic) == []
