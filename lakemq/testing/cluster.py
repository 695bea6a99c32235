"""A cluster of real processes that a test harms, and the count of what it was told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.types import TopicPartition
from lakemq.local_cluster.cluster import LocalCluster
from lakemq.testing.history import History, Seen

MARKER: Final = "lakemq_cluster"
READ_MAX_S: Final = 60.0
_PAUSE_S: Final = 0.2


class Cluster(LocalCluster):
    """`LocalCluster` with clients, and a history of acks."""

    def __init__(
        self, folder: Path, nodes: int = 3, *, config: str = "", links: bool = True
    ) -> None:
        """As `LocalCluster`."""
        super().__init__(folder, nodes, config=config, links=links)
        self.history = History()
        """What clients were told: `send` notes acks, others call `history.acked`."""
        self._clients: list[lakemq.SyncClient] = []

    def client(self, **options: Any) -> lakemq.SyncClient:
        """A blocking client that knows all nodes, closed when the cluster stops. `options`: of
        `lakemq.connect`."""
        made = lakemq.connect(self.bootstrap, **options)
        self._clients.append(made)
        return made

    def send(
        self, client: lakemq.SyncClient, topic: str, value: bytes, **options: Any
    ) -> lakemq.RecordMetadata:
        """`client.send`, and a note of the ack."""
        metadata = client.send(topic, value, **options)
        self.history.acked(topic, metadata.partition, metadata.offset, value)
        return metadata

    def stored(self, topic: str, timeout_s: float = READ_MAX_S) -> dict[TopicPartition, list[Seen]]:
        """Every record of the topic, by partition. Waits `timeout_s` at most until all partitions
        have a leader and everything in them can be read. Raises a LakeMQError."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with lakemq.connect(self.bootstrap, timeout_s=timeout_s) as client:
                    return {
                        TopicPartition(topic, each.partition): [
                            Seen(record.offset, record.value)
                            for record in client.consume(topic, partition=each.partition)
                        ]
                        for each in _described(client, topic, deadline)
                    }
            except LakeMQError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def assert_no_loss(self, *, unique: bool = True, timeout_s: float = READ_MAX_S) -> None:
        """Every record that was acknowledged or read is where it was said to be, and no offset is
        left out. `unique`: no value was sent twice, so none may be stored twice. Raises
        AssertionError."""
        stored: dict[TopicPartition, list[Seen]] = {}
        for topic in self.history.topics():
            stored |= self.stored(topic, timeout_s)
        problems = self.history.problems(stored, unique=unique)
        assert not problems, "\n".join(problems)

    def stop(self) -> None:
        """Close the clients, kill every process."""
        try:
            while self._clients:
                self._clients.pop().close()
        finally:
            super().stop()


def _described(
    client: lakemq.SyncClient, topic: str, deadline: float
) -> tuple[lakemq.PartitionOffsets, ...]:
    """Once every partition was described by its leader, and all of it can be read: a new leader
    knows what is committed a little later than what it has."""
    while True:
        partitions = client.describe_topic(topic).partitions
        waiting = [
            each
            for each in partitions
            if each.state in ("remote", "offline") or each.high_watermark < each.log_end_offset
        ]
        if not waiting or time.monotonic() > deadline:
            return partitions
        time.sleep(_PAUSE_S)


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known to pytest."""
    config.addinivalue_line(
        "markers", f"{MARKER}(nodes=3, config='', links=True): how `lakemq_cluster` is made"
    )


@pytest.fixture
def lakemq_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that serves, its data in `tmp_path`; every process is ended after the test."""
    marker = request.node.get_closest_marker(MARKER)
    with Cluster(tmp_path / "cluster", **(marker.kwargs if marker else {})) as cluster:
        yield cluster
