"""Goal: a consumer group goes on, whatever happens to its coordinator, and takes nothing back.

Method: real processes. Members connected to different nodes read and commit each record while the
coordinator is killed, stands still and is stopped. Every record is read, no committed offset goes
back, and no two members own a partition in one epoch. `LAKEMQ_FAULT_ROUNDS=5`: five times each.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.plugins.native.groups.offset_table import OFFSETS_TOPIC
from lakemq.testing import Cluster
from tests.support.cluster.load import until
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


class Member:
    """Reads and commits in a thread of its own, connected to one node first."""

    def __init__(self, readers: Readers, bootstrap: str) -> None:
        self._readers = readers
        self._bootstrap = bootstrap
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._read())
        except BaseException as error:
            self.error = error

    async def _read(self) -> None:
        readers = self._readers
        async with (
            lakemq.Client(self._bootstrap, timeout_s=60) as client,
            client.subscribe(readers.topic, group=readers.group) as consumer,
        ):
            task = asyncio.create_task(self._consume(consumer))
            while not readers.stopping.is_set() and not task.done():
                readers.own(consumer)
                await asyncio.sleep(0.02)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _consume(self, consumer: lakemq.Consumer) -> None:
        async for record in consumer:
            self._readers.read(record.partition, record.offset)
            with suppress(lakemq.MemberFenced, lakemq.UnknownMember):
                await consumer.commit()
                self._readers.committed(consumer)


class Readers:
    """What all members of one group have done."""

    def __init__(self, cluster: Cluster, topic: str, group: str) -> None:
        self.topic, self.group = topic, group
        self.stopping = threading.Event()
        self.commits = 0
        self.seen: set[tuple[int, int]] = set()
        self.problems: list[str] = []
        self._owners: dict[tuple[lakemq.TopicPartition, int], str] = {}
        self._lock = threading.Lock()
        addresses = [cluster.address(name) for name in cluster.names]
        self.members = [
            Member(self, ",".join(addresses[first:] + addresses[:first]))
            for first in range(len(addresses))
        ]

    def read(self, partition: int, offset: int) -> None:
        with self._lock:
            self.seen.add((partition, offset))

    def committed(self, consumer: lakemq.Consumer) -> None:
        with self._lock:
            self.commits += 1

    def own(self, consumer: lakemq.Consumer) -> None:
        with self._lock:
            for place, grant in consumer._membership.held.items():
                member = self._owners.setdefault((place, grant.epoch), consumer.member_id)
                if member != consumer.member_id:
                    self.problems.append(f"{place} has two owners in epoch {grant.epoch}")

    def until_committed(self, more: int, timeout_s: float = 60.0) -> float:
        """Seconds until so many more commits were answered."""
        began, target = time.monotonic(), self.commits + more
        until(lambda: self.commits >= target or any(each.error for each in self.members), timeout_s)
        self.check()
        return time.monotonic() - began

    def check(self) -> None:
        assert [each.error for each in self.members if each.error is not None] == []
        assert self.problems == []

    def stop(self) -> None:
        self.stopping.set()
        for each in self.members:
            each.thread.join(30)
        self.check()


class Offsets:
    """Committed offsets of a group, as they are told all the while; none may go back."""

    def __init__(self, client: lakemq.SyncClient, group: str) -> None:
        self._client, self._group = client, group
        self.last: dict[int, int] = {}

    def look(self) -> dict[int, int]:
        found = self._client.describe_group(self._group)
        for each in found.offsets:
            before = self.last.get(each.partition, -1)
            assert each.committed_offset >= before, f"{each.partition} went back from {before}"
            self.last[each.partition] = each.committed_offset
        return self.last


class Sender:
    def __init__(self, client: lakemq.SyncClient, topic: str) -> None:
        self.sent = 0
        self._client, self._topic = client, topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(LakeMQError):
                self._client.send(self._topic, b"x", partition=self.sent % PARTITIONS)
                self.sent += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)


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
        readers, sender = Readers(cluster, topic, group), Sender(client, topic)
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
