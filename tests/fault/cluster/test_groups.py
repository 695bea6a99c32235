"""Goal: a consumer group goes on, whatever happens to its coordinator, and takes nothing back.

Method: real processes. Members connected to different nodes read and commit each record while the
coordinator is killed, stands still and is stopped. Every record is read, no committed offset goes
back, and no two members own a partition in one epoch. `LAKEMQ_FAULT_ROUNDS=5`: five times each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.groups.offset_table import OFFSETS_TOPIC
from lakemq.testing import Cluster
from tests.support.cluster.group_load import Offsets, Readers
from tests.support.cluster.load import Sender, until
from tests.support.cluster.topics import made, partitions, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
long_run = pytest.mark.skipif(ROUNDS < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2")
PARTITIONS = 6
GOES_ON_MAX_S = 40.0
"""On a busy machine; in calm it is about a second."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("groups")) as running:
        yield running


def coordinator(cluster: Cluster, group: str) -> str:
    found = partitions(cluster, OFFSETS_TOPIC)
    leader = found[partition_of(group.encode(), len(found))].leader
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
def test_a_group_goes_on_without_its_coordinator(cluster: Cluster, kind: str) -> None:
    topic, group = made(cluster, unique("groups"), PARTITIONS), unique("group")
    with cluster.client(timeout_s=60) as client:
        readers, sender = Readers(cluster, topic, group), Sender(client, topic, PARTITIONS)
        offsets = Offsets(client, group)
        readers.until_committed(30)
        until_in_sync(cluster, OFFSETS_TOPIC)
        for _ in range(ROUNDS):
            offsets.look()
            name = coordinator(cluster, group)
            harm(cluster, name, kind)
            took_s = readers.until_committed(30, GOES_ON_MAX_S)
            print(f"{kind}: 30 more commits {took_s:.1f} s later")
            offsets.look()
            if kind == "pause":
                cluster.resume(name)
            else:
                cluster.start_node(name)
            until_in_sync(cluster, OFFSETS_TOPIC)
            readers.until_committed(30)
            offsets.look()
        sender.stop()
        ends = {
            each.partition: each.high_watermark for each in client.describe_topic(topic).partitions
        }
        until(lambda: offsets.look() == ends)
        readers.stop()
        assert readers.seen >= {(at, n) for at, end in ends.items() for n in range(end)}
        print(f"{sum(ends.values())} records, {readers.commits} commits")
