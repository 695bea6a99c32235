"""Goal: records that appear later, through both faces of the SDK against a real node."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import PORTS_FREE, NodeProcess

pytestmark = pytest.mark.partitions(2)

LIMITS = PORTS_FREE + "[schedules]\nbatches_max = 100\nhorizon_ms = 86400000\n"
SOON = timedelta(milliseconds=300)
LATER = timedelta(hours=1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("schedules"), LIMITS) as node:
        yield node


@pytest.fixture
def client(node: NodeProcess) -> Iterator[lakemq.SyncClient]:
    with lakemq.connect(node.native, timeout_s=10) as client:
        yield client
        for each in client.schedules.waiting():
            client.schedules.cancel(each.schedule_id)


def values(client: lakemq.SyncClient, topic: str) -> list[bytes | None]:
    return [record.value for record in client.consume(topic)]


def wait_for(client: lakemq.SyncClient, topic: str, count: int) -> list[lakemq.Record]:
    for record in (records := client.consume(topic, follow=True)):
        found = [record, *itertools.islice(records, count - 1)]
        break
    return found


def test_a_record_appears_at_its_time(client: lakemq.SyncClient, topic: str) -> None:
    asked = client.schedules.send(topic, b"later", delay=SOON, key=b"k", partition=1)
    assert values(client, topic) == []
    assert [each.schedule_id for each in client.schedules.waiting(topic)] == [asked.schedule_id]
    (found,) = wait_for(client, topic, 1)
    seen_ms = time.time() * 1000
    assert (found.value, found.key, found.timestamp_ms) == (b"later", b"k", asked.deliver_at_ms)
    assert 0 <= seen_ms - asked.deliver_at_ms < 2000
    assert client.schedules.waiting(topic) == []


def test_times_order_records_of_a_partition(client: lakemq.SyncClient, topic: str) -> None:
    base = datetime.now(UTC) + SOON
    for number in (3, 1, 2, 0):
        at = base + timedelta(milliseconds=20 * number)
        client.schedules.send(topic, b"%d" % number, deliver_at=at, partition=0)
    assert [each.value for each in wait_for(client, topic, 4)] == [b"0", b"1", b"2", b"3"]


def test_a_time_that_is_over_means_now(client: lakemq.SyncClient, topic: str) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    client.schedules.send(topic, b"x", deliver_at=past, timestamp_ms=77, partition=0)
    (found,) = wait_for(client, topic, 1)
    assert found.timestamp_ms == 77


def test_what_is_cancelled_never_appears(client: lakemq.SyncClient, topic: str) -> None:
    client.schedules.send(topic, b"no", delay=SOON, schedule_id="mine", partition=0)
    client.schedules.cancel("mine")
    client.schedules.send(topic, b"yes", delay=2 * SOON, partition=0)
    assert [each.value for each in wait_for(client, topic, 1)] == [b"yes"]
    with pytest.raises(lakemq.UnknownSchedule, match="mine"):
        client.schedules.cancel("mine")


def test_asking_twice_schedules_once(client: lakemq.SyncClient, topic: str) -> None:
    for _ in range(3):
        client.schedules.send(topic, b"once", delay=SOON, schedule_id="once", partition=0)
    wait_for(client, topic, 1)
    client.schedules.send(topic, b"once", delay=timedelta(), schedule_id="once", partition=0)
    client.schedules.send(topic, b"end", delay=timedelta(), partition=0)
    assert [each.value for each in wait_for(client, topic, 2)] == [b"once", b"end"]


def test_many_appear_once_each(client: lakemq.SyncClient, topic: str) -> None:
    at = datetime.now(UTC) + 2 * SOON
    for number in range(60):
        client.schedules.send(topic, b"%d" % number, deliver_at=at, key=b"%d" % number)
    found = [int(each.value or b"") for each in wait_for(client, topic, 60)]
    assert sorted(found) == list(range(60))


def test_limits_and_wrong_requests_are_told(client: lakemq.SyncClient, topic: str) -> None:
    send = client.schedules.send
    with pytest.raises(lakemq.InvalidRequest, match="deliver_at_ms"):
        send(topic, b"x", delay=timedelta(days=2))
    with pytest.raises(lakemq.InvalidRequest, match="printable"):
        send(topic, b"x", delay=LATER, schedule_id="x" * 65)
    with pytest.raises(lakemq.InvalidRequest, match="either"):
        send(topic, b"x")
    with pytest.raises(lakemq.InvalidRequest, match="time zone"):
        send(topic, b"x", deliver_at=datetime(2030, 1, 1))
    with pytest.raises(lakemq.UnknownTopic):
        send("nowhere", b"x", delay=LATER)
    with pytest.raises(lakemq.NotAuthorized):
        send("_lakemq_delayed", b"x", delay=LATER)
    for number in range(100):
        send(topic, b"%d" % number, delay=LATER, partition=0)
    with (
        lakemq.connect(client.bootstrap, timeout_s=0.2) as hasty,
        pytest.raises(lakemq.StagingFull, match="100 batches are scheduled"),
    ):
        hasty.schedules.send(topic, b"x", delay=LATER)


def test_records_of_a_deleted_topic_go_with_it(client: lakemq.SyncClient, topic: str) -> None:
    client.schedules.send(topic, b"old", delay=SOON, partition=0)
    client.delete_topic(topic)
    client.create_topic(topic, partitions=2)
    client.schedules.send(topic, b"new", delay=2 * SOON, partition=0)
    assert [each.value for each in wait_for(client, topic, 1)] == [b"new"]


def test_the_command_lists_and_cancels(client: lakemq.SyncClient, topic: str) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = ["schedule", *arguments, "--bootstrap", client.bootstrap]
        return subprocess.run(
            [sys.executable, "-m", "lakemq", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )

    client.schedules.send(topic, b"x", delay=LATER, schedule_id="wake-up")
    (line,) = [each for each in command("list").stdout.splitlines() if topic in each]
    assert line.split()[-1] == "wake-up"
    assert command("cancel", "wake-up").returncode == 0
    assert client.schedules.waiting(topic) == []
    gone = command("cancel", "wake-up")
    assert gone.returncode == 4 and "unknown schedule" in gone.stderr


def test_what_waits_survives_a_restart(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    with node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=1)
        at = datetime.now(UTC) + timedelta(seconds=2)
        client.schedules.send("t", b"x", deliver_at=at)
        client.schedules.send("t", b"cancelled", deliver_at=at, schedule_id="c")
        client.schedules.cancel("c")
    with node, lakemq.connect(node.native) as client:
        assert [each.value for each in wait_for(client, "t", 1)] == [b"x"]
    with node, lakemq.connect(node.native) as client:
        assert values(client, "t") == [b"x"]
        assert client.schedules.waiting() == []
