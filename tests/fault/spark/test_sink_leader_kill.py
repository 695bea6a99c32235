"""Goal: a streaming query from a topic into a topic writes each row once, though coordinators of
its sink and leaders of both topics are killed.

Method: three real nodes, and Spark in a process of its own. It starts a JVM, so it runs only with
LAKEMQ_EXPORT_KILLS=1.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakemq
from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.partitioner import partition_of
from lakemq.broker_core.api.transactions.types import SINK, Owner
from lakemq.broker_core.transactions.formats import STAGED_TOPIC, encode_owner
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import leader, made, partitions, until_in_sync
from tests.support.spark import killed_sink

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("LAKEMQ_EXPORT_KILLS"), reason="set LAKEMQ_EXPORT_KILLS=1"
    ),
]
COUNT = 1_200


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", links=False) as cluster:
        yield cluster


def coordinator(cluster: Cluster, checkpoint: Path) -> str:
    """Of the query's sink, which is named after the query."""
    name = json.loads((checkpoint / "metadata").read_text())["id"]
    found = partitions(cluster, STAGED_TOPIC)
    node = found[partition_of(encode_owner(Owner(SINK, name)), len(found))].leader
    assert node is not None
    return node


def written(cluster: Cluster, topic: str) -> list[int]:
    return sorted(
        int(seen.value or b"-1") for records in cluster.stored(topic).values() for seen in records
    )


def count(client: lakemq.SyncClient, topic: str) -> int:
    try:
        return sum(each.high_watermark for each in client.describe_topic(topic).partitions)
    except LakeMQError:
        return 0


def test_a_sink_goes_on_without_its_coordinator(cluster: Cluster, tmp_path: Path) -> None:
    source, topic = made(cluster, "in", 2), made(cluster, "out", 3)
    checkpoint = tmp_path / "checkpoint"
    bootstrap = ",".join(cluster.address(name) for name in cluster.names)
    with cluster.client(timeout_s=60) as client:
        for partition in range(2):
            values = [b"%d" % (2 * n + partition) for n in range(COUNT // 2)]
            client.send_batch(source, lakemq.Columns(values, values), partition=partition)
        process = killed_sink.start(bootstrap, source, topic, str(checkpoint), "none", "-1")
        told: list[str] = []
        reader = threading.Thread(target=lambda: told.extend(process.stdout or ()), daemon=True)
        reader.start()

        def until_more(rows: int, timeout_s: float) -> None:
            goal = count(client, topic) + rows
            until(lambda: count(client, topic) >= goal or process.poll() is not None, timeout_s)
            assert process.poll() is None, "".join(told)[-8_000:]

        try:
            for number in range(2):
                until_more(120, 200.0)
                name = coordinator(cluster, checkpoint) if number == 0 else leader(cluster, topic)
                cluster.kill(name)
                until_more(120, 100.0)
                cluster.start_node(name)
                until_in_sync(cluster, STAGED_TOPIC)
                until_in_sync(cluster, topic)
            code = process.wait(300)
        finally:
            process.kill()
            process.wait()
            reader.join(10)
            if process.stdout is not None:
                process.stdout.close()
    assert code == 0, "".join(told)[-5_000:]
    assert written(cluster, topic) == list(range(COUNT))
