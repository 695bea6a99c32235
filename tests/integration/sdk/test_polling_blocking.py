"""Goal: what `poll`, `get_many`, `stop` and the like promise holds for blocking programs, also when
other threads and signals come in.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lakemq
from lakemq import TopicPartition
from tests.support.node.node import NodeProcess

ROOT = Path(__file__).parents[3]


def fill(client: lakemq.SyncClient, topic: str, count: int = 60) -> None:
    records = [lakemq.NewRecord(b"%d" % n, timestamp_ms=n * 1000) for n in range(count)]
    client.send_batch(topic, records, partition=0)


def numbers(records: list[lakemq.ConsumerRecord]) -> list[int]:
    return [int(each.value or b"") for each in records]


def test_reading_by_calls(client: lakemq.SyncClient, topic: str) -> None:
    fill(client, topic)
    place = TopicPartition(topic, 0)
    with client.subscribe(topic, group=topic) as consumer:
        found = numbers(consumer.get_many(10, timeout_s=20))
        while len(found) < 30:
            record = consumer.poll(5.0)
            assert record is not None
            found += numbers([record])
        for record in consumer:
            found += numbers([record])
            if len(found) == 40:
                break
        while batch := consumer.get_many(7, 1.0):
            assert len(batch) <= 7
            found += numbers(batch)
        assert found == list(range(60))
        assert consumer.poll(0.2) is None and consumer.lag() == {place: 0}
        assert consumer.counters.records == 60  # none was fetched twice
        consumer.seek(place, 58)
        assert numbers(consumer.get_many(9, 5.0)) == [58, 59]
        consumer.seek_to_timestamp(datetime.fromtimestamp(57, UTC))
        consumer.pause(place)
        assert consumer.paused == {place} and consumer.poll(0.3) is None
        consumer.resume()
        assert numbers(consumer.get_many(1, 5.0)) == [57]
        consumer.commit()
        assert consumer.positions() == {place: 58}
    assert client.describe_group(topic).lag == 2
    with client.assign({place: datetime.fromtimestamp(50, UTC)}) as consumer:
        assert numbers(consumer.get_many(3, 20)) == [50, 51, 52]


def test_another_thread_stops_a_waiting_consumer(client: lakemq.SyncClient, topic: str) -> None:
    with client.subscribe(topic, group=topic) as consumer:
        for wait in (lambda: list(consumer), lambda: consumer.get_many(), lambda: consumer.poll()):
            if not consumer.stopped:
                threading.Timer(0.3, consumer.stop).start()
            began_s = time.monotonic()
            assert not wait()
            assert time.monotonic() - began_s < 10


def test_closing_the_client_ends_its_threads(node: NodeProcess, topic: str) -> None:
    client = lakemq.connect(node.native, timeout_s=10)
    ended: list[object] = []

    def work() -> None:
        with client.subscribe(topic, group=topic) as consumer:
            try:
                ended.append(list(consumer))
            except lakemq.LakeMQError as error:
                ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.5)
    client.close()
    thread.join(20)
    assert not thread.is_alive() and len(ended) == 1


SERVICE = """
import signal, sys
import lakemq

with lakemq.connect(sys.argv[1]) as client, client.subscribe(sys.argv[2], group="svc") as consumer:
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    print("ready", flush=True)
    for record in consumer:
        print(record.offset, flush=True)
    consumer.commit()
print("ended", flush=True)
"""


def test_a_signal_stops_a_service(node: NodeProcess, client: lakemq.SyncClient, topic: str) -> None:
    fill(client, topic, 5)
    run = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SERVICE, node.native, topic],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert run.stdout is not None
    lines = [run.stdout.readline().strip() for _ in range(6)]
    assert lines == ["ready", "0", "1", "2", "3", "4"]
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out, err) == (0, "ended\n", "")
    (at,) = (each for each in client.describe_group("svc").offsets if each.topic == topic)
    assert at.committed_offset == 5


def test_a_queue_is_waited_for_so_long(client: lakemq.SyncClient, topic: str) -> None:
    with client.queue(topic, group="workers") as queue:
        began_s = time.monotonic()
        assert queue.next_batch(5, timeout_s=0.3) == []
        assert queue.next_batch(5, timeout_s=0) == []
        assert 0.2 < time.monotonic() - began_s < 10
        fill(client, topic, 5)
        found: list[lakemq.SyncQueueRecord] = []
        while batch := queue.next_batch(3, timeout_s=2.0):
            assert len(batch) <= 3
            found += batch
        assert [each.offset for each in found] == list(range(5))
        queue.ack(found)
        threading.Timer(0.3, queue.stop).start()
        assert list(queue) == [] and queue.next_batch(5) == []
        with pytest.raises(lakemq.InvalidRequest, match="timeout_s"):
            queue.next_batch(1, timeout_s="soon")  # type: ignore[arg-type]
