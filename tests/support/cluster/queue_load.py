"""Consumers of a queue that settle most records and hand some back, while nodes are harmed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.testing import Cluster
from tests.support.cluster.async_thread import AsyncThread
from tests.support.cluster.load import until
from tests.support.cluster.queue_history import QueueHistory, judged

SOUR = 20
"""Each so many-th record is handed back until it is a dead letter."""
ATTEMPTS = 3


class Consumer(AsyncThread):
    """In a thread of its own, connected to one node first."""

    def __init__(self, consumers: Consumers, bootstrap: str) -> None:
        self._consumers = consumers
        self._bootstrap = bootstrap
        super().__init__()

    async def work(self) -> None:
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
        errors = [each.error for each in self.members if each.error is not None]
        assert not errors, errors

    def stop(self) -> None:
        self.stopping.set()
        for each in self.members:
            each.thread.join(30)
        self.check()

    def judge(self, client: lakemq.SyncClient, ends: Mapping[int, int]) -> str:
        """Raises AssertionError with what must not be; what was done. `ends`: partition -> records
        in it, all of them settled by now."""
        letters: Counter[tuple[int, int]] = Counter()
        for each in client.describe_topic(self.dead).partitions:
            for record in client.consume(self.dead, partition=each.partition):
                note = dict(record.headers)
                assert note["lakemq-dead-attempts"] == b"%d" % ATTEMPTS
                letters[int(note["lakemq-dead-partition"]), int(note["lakemq-dead-offset"])] += 1  # type: ignore[arg-type]  # never None
        places = {(at, offset) for at, end in ends.items() for offset in range(end)}
        sour = {place for place in places if place[1] % SOUR == 0}
        wrong = judged(self.history, places, sour, letters)
        assert wrong == [], "\n".join(wrong[:20])
        return f"{len(places)} records, {self.history.settlements} settled, {len(letters)} letters"


def backlog(client: lakemq.SyncClient, group: str, topic: str) -> int:
    with suppress(LakeMQError):
        for found in client.admin.queues(group, topic):
            return sum(each.backlog for each in found.partitions)
    return -1
