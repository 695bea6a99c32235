"""Goal: scheduled records appear once and not before their time, though the nodes that keep them
are killed; what was cancelled never does.

Method: real processes. A client schedules and cancels records for partitions that all nodes lead,
while a node that keeps schedules is killed and started again, several times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

import lakemq
from lakemq.broker_core.api.state.internal_topics import SCHEDULES
from lakemq.testing import Cluster
from tests.support.cluster.schedule_load import Scheduling
from tests.support.cluster.topics import leader, made, partitions, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
KILLS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("schedules")) as running:
        yield running


def test_scheduled_records_appear_once(cluster: Cluster) -> None:
    topic = made(cluster, unique("later"), PARTITIONS)
    sender = Scheduling(cluster, topic, PARTITIONS)
    sender.until_sent(50)
    until_in_sync(cluster, SCHEDULES)
    for _ in range(KILLS):
        name = leader(cluster, SCHEDULES)
        cluster.kill(name)
        began = time.monotonic()
        sender.until_sent(50)
        print(f"{name} killed: 50 more scheduled {time.monotonic() - began:.1f} s later")
        cluster.start_node(name)
        until_in_sync(cluster, SCHEDULES)
    sender.stop()
    with cluster.client(timeout_s=60) as client:
        print(sender.judge(client))


def test_a_schedule_is_found_and_cancelled_at_any_node(cluster: Cluster) -> None:
    topic = made(cluster, unique("later"), PARTITIONS)
    hour = timedelta(hours=1)
    names = [f"{topic}-{number}" for number in range(PARTITIONS)]
    with cluster.client(timeout_s=60) as client:
        for number, name in enumerate(names):
            client.schedules.send(topic, b"x", delay=hour, schedule_id=name, partition=number)
    until_in_sync(cluster, SCHEDULES)
    assert len({each.leader for each in partitions(cluster, SCHEDULES)}) > 1
    for at, node in enumerate(cluster.names):
        with lakemq.connect(cluster.address(node), timeout_s=60) as client:
            again = client.schedules.send(
                topic, b"x", delay=2 * hour, schedule_id=names[-1], partition=PARTITIONS - 1
            )
            assert again.deliver_at_ms < (time.time() + 3700) * 1000
            assert len(client.schedules.waiting(topic)) == PARTITIONS - at
            client.schedules.cancel(names[at])
            with pytest.raises(lakemq.UnknownSchedule):
                client.schedules.cancel(names[at])
