"""Goal: the ledger counts each record once, though leaders are killed and leadership comes back to
nodes that have counted before.

Method: three real nodes. Devices number their records, leave numbers out and repeat some, while the
leader is killed, and the next one, when the first is there again. In the end the ledger says what
who reads the whole topic counts.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import lakemq
from lakemq.plugins.ledger.cli import ledger
from lakemq.testing import Cluster
from tests.support.cluster.load import until
from tests.support.cluster.topics import leader, made, until_in_sync

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
CONFIG = """
[cluster]
replica_lag_max_ms = 1500
[plugins.ledger]
look_ms = 20
checkpoint_ms = 200
"""
DEVICES = 5
ENOUGH = 100
"""Records between two faults."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", config=CONFIG, links=False) as cluster:
        yield cluster


class Devices(threading.Thread):
    """Send until they are told to end. An ack that was lost is asked for again by the producer."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._client = cluster.client(timeout_s=60)
        self._topic = topic
        self.acked = 0
        self.ending = threading.Event()

    def run(self) -> None:
        rng = random.Random(7)
        numbers: Counter[str] = Counter()
        while not self.ending.is_set():
            device = f"device-{rng.randrange(DEVICES)}"
            numbers[device] += rng.choice([1, 1, 1, 1, 0, 3])
            value = json.dumps({"n": numbers[device]}).encode()
            self._client.send(self._topic, value, key=device.encode())
            self.acked += 1

    def more(self) -> None:
        """Wait for some more acks."""
        wanted = self.acked + ENOUGH
        until(lambda: self.acked >= wanted, 60)


def shown(cluster: Cluster, node: str, *words: str) -> Any:
    """What `lakemq ledger` tells, asked of a node."""
    where = ("--admin", cluster.address(node, "admin"), "--json")
    app = typer.Typer()
    app.command()(ledger)
    run = CliRunner().invoke(app, [*words, *where])
    return json.loads(run.stdout) if run.exit_code == 0 else None


def counted_by_hand(client: lakemq.SyncClient, topic: str) -> dict[str, tuple[int, int, int]]:
    """Device -> records, missing, duplicates."""
    numbers: dict[str, Counter[int]] = defaultdict(Counter)
    for record in client.consume(topic):
        numbers[(record.key or b"").decode()][json.loads(record.value or b"")["n"]] += 1
    return {
        device: (
            found.total(), max(found) - min(found) + 1 - len(found), found.total() - len(found)
        )
        for device, found in numbers.items()
    }  # fmt: skip


def test_leaders_are_killed_while_devices_are_counted(cluster: Cluster) -> None:
    topic = made(cluster, "counted", 1)
    with cluster.client(timeout_s=30) as client:
        client.admin.alter_topic(topic, config={"ledger": "sequence=$.n"})
    devices = Devices(cluster, topic)
    devices.start()
    devices.more()
    led: list[str] = []
    for _ in range(3):  # of three nodes: one of them leads a second time, from what it had stored
        name = leader(cluster, topic)
        led.append(name)
        until(lambda name=name: bool(shown(cluster, name, topic)), 60)
        cluster.kill(name)
        devices.more()
        cluster.start_node(name)
        until_in_sync(cluster, topic)
    devices.more()
    devices.ending.set()
    devices.join(60)
    assert not devices.is_alive()
    assert len(set(led)) < len(led) or leader(cluster, topic) in led

    with cluster.client(timeout_s=60) as client:
        expected = counted_by_hand(client, topic)
    assert sum(found[2] for found in expected.values()) > 0
    assert sum(found[1] for found in expected.values()) > 0

    def counts(node: str) -> list[tuple[str, tuple[int, int, int]]]:
        rows = shown(cluster, node, topic) or []
        return sorted(
            (row["device"], (row["records"], row["missing"], row["duplicates"])) for row in rows
        )

    for node in cluster.names:  # each of them asks the leader, and shows no other's
        until(lambda node=node: counts(node) == sorted(expected.items()), 60)
    records = sum(found[0] for found in expected.values())
    assert records == devices.acked
    counted = [(records, 0, 0, 0)]

    def partitions() -> list[tuple[int, ...]]:
        fields = ("records", "deleted", "unread", "lag")
        rows = shown(cluster, cluster.names[0]) or []
        return [tuple(row[each] for each in fields) for row in rows]

    until(lambda: partitions() == counted, 60)
