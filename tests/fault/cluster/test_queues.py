"""Goal: a queue goes on, whatever happens to its coordinator: what was settled is never given
again, what was not is, dead letters come once, and each record has one holder of the newest
coordinator at a time.

Method: real processes. Consumers connected to different nodes settle records of partitions that all
nodes lead, while the coordinator is killed, stands still and is stopped. What they are given and
answered is a history, which `judged` reads. `LAKEMQ_FAULT_ROUNDS=5`: five times each.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.plugins.native.queues.snapshot import QUEUES_TOPIC
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.queue_history import QueueHistory, judged
from tests.support.cluster.topics import made, partitions, until_in_sync
from tests.support.node.node import unique

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))
long_run = pytest.mark.skipif(ROUNDS < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2")
PARTITIONS = 3
GOES_ON_MAX_S = 40.0
"""On a busy machine; in calm it is about a second."""
SOUR = 20
"""Each so many-th record is handed back until it is a dead letter."""
ATTEMPTS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("queues")) as running:
        yield running


class Consumer:
    """In a thread of its own, connected to one node first."""

    def __init__(self, consumers: Consumers, bootstrap: str) -> None:
        self._consumers = consumers
        self._bootstrap = bootstrap
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._consume())
        except BaseException as error:
            self.error = error

    async def _consume(self) -> None:
        consumers = self._consumers
        options = lakemq.QueueOptions(
            attempts_max=ATTEMPTS, dead_letter=consumers.dead, backoff_ms=1, prefetch=10
        )
        async with (
            lakemq.Client(self._bootstrap, timeout_s=60) as client,
            client.queue(consumers.topic, group=consumers.group, **options) as queue,
        ):
            task = asyncio.create_task(self._settle(queue))
            while not consumers.stopping.is_set() and not task.done():  # noqa: ASYNC110  of a thread
                await asyncio.sleep(0.02)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _settle(self, queue: lakemq.Queue) -> None:
        history = self._consumers.history
        async for record in queue:
            place = (record.partition, record.offset)
            given = history.given(place, record.attempt)
            await asyncio.sleep(0.002)
            with suppress(lakemq.OutcomeUnknown, lakemq.LockLost):
                if record.offset % SOUR == 0:
                    await record.nack()
                    history.failed(given)
                else:
                    await record.ack()
                    history.settled(given)


class Consumers:
    """What all consumers of one queue have done."""

    def __init__(self, cluster: Cluster, topic: str, dead: str, group: str) -> None:
        self.topic, self.dead, self.group = topic, dead, group
        self.stopping = threading.Event()
        self.history = QueueHistory()
        addresses = [cluster.address(name) for name in cluster.names]
        self.members = [
            Consumer(self, ",".join(addresses[first:] + addresses[:first]))
            for first in range(len(addresses))
        ]

    def until_settled(self, more: int, timeout_s: float = 60.0) -> float:
        """Seconds until so many more were settled."""
        began, target = time.monotonic(), self.history.settlements + more
        until(
            lambda: (
                self.history.settlements >= target
                or any(each.error is not None for each in self.members)
            ),
            timeout_s,
        )
        self.check()
        return time.monotonic() - began

    def check(self) -> None:
        assert [each.error for each in self.members if each.error is not None] == []

    def stop(self) -> None:
        self.stopping.set()
        for each in self.members:
            each.thread.join(30)
        self.check()


class Sender:
    def __init__(self, client: lakemq.SyncClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sent = 0
        while not self._stopping.is_set():
            with suppress(LakeMQError):
                self._client.send(self._topic, b"x", partition=sent % PARTITIONS)
                sent += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)


def coordinator(cluster: Cluster, group: str, topic: str) -> str:
    found = partitions(cluster, QUEUES_TOPIC)
    leader = found[partition_of(f"{group}\0{topic}".encode(), len(found))].leader
    assert leader is not None
    return leader


def backlog(client: lakemq.SyncClient, group: str, topic: str) -> int:
    with suppress(LakeMQError):
        for found in client.admin.queues(group, topic):
            return sum(each.backlog for each in found.partitions)
    return -1


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
        consumers, sender = Consumers(cluster, topic, dead, group), Sender(client, topic)
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
        letters: Counter[tuple[int, int]] = Counter()
        for each in client.describe_topic(dead).partitions:
            for record in client.consume(dead, partition=each.partition):
                note = dict(record.headers)
                assert note["lakemq-dead-attempts"] == b"%d" % ATTEMPTS
                letters[int(note["lakemq-dead-partition"]), int(note["lakemq-dead-offset"])] += 1  # type: ignore[arg-type]  # never None
    places = {(at, offset) for at, end in ends.items() for offset in range(end)}
    sour = {place for place in places if place[1] % SOUR == 0}
    assert judged(consumers.history, places, sour, letters) == []
    print(f"{len(places)} records, {consumers.history.settlements} settled, {len(letters)} letters")


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
