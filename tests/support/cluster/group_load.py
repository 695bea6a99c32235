"""Members of a consumer group that read and commit each record while nodes are harmed."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import lakemq
from lakemq.testing import Cluster
from tests.support.cluster.async_thread import AsyncThread
from tests.support.cluster.load import until


class Member(AsyncThread):
    """Reads and commits in a thread of its own, connected to one node first."""

    def __init__(self, readers: Readers, bootstrap: str) -> None:
        self._readers = readers
        self._bootstrap = bootstrap
        super().__init__()

    async def work(self) -> None:
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
        errors = [each.error for each in self.members if each.error is not None]
        assert not errors, errors
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
