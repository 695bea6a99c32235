"""Goal: scheduled records appear once and not before their time, though the nodes that keep them
are killed; what was cancelled never does.

Method: real processes. A client schedules and cancels records for partitions that all nodes lead,
while a node that keeps schedules is killed and started again, several times.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

import lakemq
from lakemq.broker_core.api.state.internal_topics import SCHEDULES
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import leader, made, partitions, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
KILLS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1")) + 1
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("schedules")) as running:
        yield running


class Sender:
    """Schedules one record after the other, each under its number, and cancels some."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.due: dict[int, tuple[int, int]] = {}
        """Number -> when it may be due first, and what was told; ms."""
        self.cancelled: set[int] = set()
        self.unknown: set[int] = set()
        """Of which a cancel was answered that they had appeared, or were appearing."""
        self.error: BaseException | None = None
        self._topic = topic
        self._bootstraps = [cluster.bootstrap, cluster.address(cluster.names[-1])]
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with lakemq.connect(self._bootstraps[0], timeout_s=60) as client:
                while not self._stopping.is_set():
                    self._send(client, len(self.due))
        except BaseException as error:
            self.error = error

    def _send(self, client: lakemq.SyncClient, number: int) -> None:
        delay = timedelta(milliseconds=number * 37 % 4000)
        name = f"{self._topic}-{number}"
        asked_ms = int(time.time() * 1000)
        told = client.schedules.send(
            self._topic, b"%d" % number, delay=delay, schedule_id=name,
            partition=number % PARTITIONS,
        )  # fmt: skip
        self.due[number] = asked_ms + delay // timedelta(milliseconds=1), told.deliver_at_ms
        if number % 5 == 0:
            try:
                client.schedules.cancel(name)
                self.cancelled.add(number)
            except lakemq.UnknownSchedule:  # delivered, or a try without answer did it
                self.unknown.add(number)
        time.sleep(0.01)

    def until_sent(self, more: int) -> None:
        target = len(self.due) + more
        until(lambda: len(self.due) >= target or self.error is not None)
        assert self.error is None, self.error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(70)
        assert self.error is None, self.error


def test_scheduled_records_appear_once(cluster: Cluster) -> None:
    topic = made(cluster, unique("later"), PARTITIONS)
    sender = Sender(cluster, topic)
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
        until(lambda: client.schedules.waiting(topic) == [], what="all delivered")
        found = [
            (each.partition, record)
            for each in client.describe_topic(topic).partitions
            for record in client.consume(topic, partition=each.partition)
        ]
    seen_ms = int(time.time() * 1000)
    counted = Counter(int(each.value or b"") for _, each in found)
    assert sender.due.keys() - counted.keys() - sender.cancelled - sender.unknown == set()
    assert {each: count for each, count in counted.items() if count > 1} == {}
    assert not counted.keys() & sender.cancelled
    for partition, each in found:
        number = int(each.value or b"")
        assert partition == number % PARTITIONS
        first_ms, told_ms = sender.due[number]
        # A try that was repeated after its record was delivered is told when that was.
        assert first_ms <= each.timestamp_ms <= told_ms <= seen_ms
    print(f"{len(sender.due)} scheduled, {len(found)} appeared, {len(sender.cancelled)} cancelled")


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
