"""A client that schedules records, and cancels some, while nodes are harmed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta

import lakemq
from lakemq.testing import Cluster
from tests.support.cluster.load import until


class Scheduling:
    """Schedules one record after the other, each under its number, and cancels some."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self.due: dict[int, tuple[int, int]] = {}
        """Number -> when it may be due first, and what was told; ms."""
        self.cancelled: set[int] = set()
        self.unknown: set[int] = set()
        """Of which a cancel was answered that they had appeared, or were appearing."""
        self.error: BaseException | None = None
        self._topic, self._partitions = topic, partitions
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
            partition=number % self._partitions,
        )  # fmt: skip
        self.due[number] = asked_ms + delay // timedelta(milliseconds=1), told.deliver_at_ms
        if number % 5 == 0:
            try:
                client.schedules.cancel(name)
                self.cancelled.add(number)
            except lakemq.UnknownSchedule:  # delivered, or a try without answer did it
                self.unknown.add(number)
        time.sleep(0.01)

    def until_sent(self, more: int, timeout_s: float = 60.0) -> None:
        target = len(self.due) + more
        until(lambda: len(self.due) >= target or self.error is not None, timeout_s)
        assert self.error is None, self.error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(70)
        assert self.error is None, self.error

    def judge(self, client: lakemq.SyncClient) -> str:
        """Waits until all have appeared. Raises AssertionError with what must not be; what was
        done."""
        until(lambda: client.schedules.waiting(self._topic) == [], what="all delivered")
        found = [
            (each.partition, record)
            for each in client.describe_topic(self._topic).partitions
            for record in client.consume(self._topic, partition=each.partition)
        ]
        seen_ms = int(time.time() * 1000)
        counted = Counter(int(each.value or b"") for _, each in found)
        assert self.due.keys() - counted.keys() - self.cancelled - self.unknown == set()
        assert {each: count for each, count in counted.items() if count > 1} == {}
        assert not counted.keys() & self.cancelled
        for partition, each in found:
            number = int(each.value or b"")
            assert partition == number % self._partitions
            first_ms, told_ms = self.due[number]
            # A try that was repeated after its record was delivered is told when that was.
            assert first_ms <= each.timestamp_ms <= told_ms <= seen_ms
        return f"{len(self.due)} scheduled, {len(found)} appeared, {len(self.cancelled)} cancelled"
