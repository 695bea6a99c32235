"""Goal: threads hand records to a blocking producer that gathers them, and learn what became of
each; tables of pandas and Polars are sent as they are.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import wait
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import lakemq
from tests.support.node.node import NodeProcess, ports_kept, unique


def values(client: lakemq.SyncClient, topic: str) -> list[bytes | None]:
    return [record.value for record in client.consume(topic)]


def test_records_are_gathered_into_batches_in_order(client: lakemq.SyncClient, topic: str) -> None:
    with client.producer(linger_ms=20) as producer:
        acks = [producer.enqueue(topic, lakemq.NewRecord(b"%d" % n)) for n in range(2000)]
        # Behind those before it, each of them.
        placed = producer.send_batch(topic, [lakemq.NewRecord(b"batch")])
        assert producer.send(topic, b"last").offset == 2001
        assert [each.result().offset for each in acks] == list(range(2000))
        assert placed[0].offset == 2000 and producer.flush() == 0
        assert producer.counters.batches_sent < 400
        assert not acks[0].cancel()
        acks.append(producer.enqueue(topic, lakemq.NewRecord(b"end")))
    assert acks[-1].result(0).offset == 2002  # leaving the block has sent it
    assert values(client, topic) == [*(b"%d" % n for n in range(2000)), b"batch", b"last", b"end"]
    with pytest.raises(lakemq.InvalidRequest, match="closed"):
        producer.send(topic, b"x")


def test_threads_share_a_producer(client: lakemq.SyncClient, topic: str) -> None:
    def work(name: int) -> None:
        for number in range(500):
            producer.enqueue(topic, lakemq.NewRecord(b"%d:%d" % (name, number)))

    with client.producer() as producer:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [tuple(map(int, (each or b"").split(b":"))) for each in values(client, topic)]
    assert len(found) == 2000
    for name in range(4):  # each thread's own order holds
        assert [number for by, number in found if by == name] == list(range(500))


def test_callbacks_tell_what_became_of_each(
    client: lakemq.SyncClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def tell(error: lakemq.LakeMQError | None, placed: lakemq.RecordMetadata | None) -> None:
        # Calls of the same client do not wait for themselves.
        told.append((error, placed, client.describe_topic(topic).name))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with client.producer() as producer:
        producer.enqueue(topic, lakemq.NewRecord(b"a"), on_delivery=fail)
        producer.enqueue(topic, lakemq.NewRecord(b"b"), on_delivery=tell)
        bad = producer.enqueue(unique("none"), lakemq.NewRecord(b"c"), on_delivery=tell)
        producer.enqueue(topic, lakemq.NewRecord(b"d"), partition=7, on_delivery=tell)
        assert producer.flush(30) == 0
        assert len(told) == 3  # they have returned when `flush` does
        with pytest.raises(lakemq.UnknownTopic):
            bad.result()
        assert producer.counters.records_failed == 2
    by_kind = {type(error): placed for error, placed, _ in told}
    assert by_kind[type(None)].offset == 1
    assert by_kind[lakemq.UnknownTopic] is None and by_kind[lakemq.UnknownPartition] is None
    assert "on_delivery failed" in caplog.text


async def test_callbacks_in_asyncio(node: NodeProcess, topic: str) -> None:
    told: list[Any] = []
    caller: ContextVar[str] = ContextVar("caller")

    def on_delivery(error: lakemq.LakeMQError | None, placed: lakemq.RecordMetadata | None) -> None:
        told.append((caller.get(), error, placed))
        if len(told) == 1:
            raise ValueError("in the first of them")

    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: raised.append(what))
    async with lakemq.Client(node.native) as client, await client.producer() as producer:
        acks = []
        for name in ("a", "b", "c"):
            caller.set(name)
            record = lakemq.NewRecord(name.encode())
            acks.append(await producer.enqueue(topic, record, on_delivery=on_delivery))
        acks[1].cancel()  # what a caller waits for is its own affair
        await producer.flush()
        first, last = acks[0].result(), acks[2].result()
        assert told == [("a", None, first), ("b", None, told[1][2]), ("c", None, last)]
        assert [placed.offset for _, _, placed in told] == [0, 1, 2] and acks[1].cancelled()
    assert [str(each["exception"]) for each in raised] == ["in the first of them"]


async def test_a_refusal_that_no_caller_waits_for_is_logged_once(
    node: NodeProcess, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("small")
    async with lakemq.Client(node.native) as client, await client.producer() as producer:
        await client.create_topic(name, partitions=1, config={"batch_max_bytes": "2000"})
        large = lakemq.NewRecord(b"x" * 3000)
        waited_for = asyncio.gather(await producer.enqueue(name, large), return_exceptions=True)
        await producer.flush()
        assert isinstance((await waited_for)[0], lakemq.BatchTooLarge)
        assert not caplog.records
        for _ in range(3):
            await producer.enqueue(name, large)
        placed = await producer.enqueue(name, lakemq.NewRecord(b"small"))
        await producer.flush()
        assert placed.result().offset == 0 and producer.counters.records_failed == 4
    gc.collect()
    (told,) = caplog.records
    assert told.levelname == "WARNING" and told.name == "lakemq.sdk"
    assert told.getMessage().startswith("1 records failed, and no caller waits for their acks: ")


def test_bad_records_are_refused_at_once(client: lakemq.SyncClient, topic: str) -> None:
    with client.producer() as producer:
        with pytest.raises(lakemq.InvalidRequest, match=r"a str has \.encode"):
            producer.enqueue(topic, lakemq.NewRecord("text"))
        with pytest.raises(lakemq.InvalidRequest, match="time zone"):
            producer.send(topic, b"x", timestamp_ms=datetime(2026, 1, 1))
    with pytest.raises(lakemq.InvalidRequest, match="linger"):
        client.producer(linger=5)  # type: ignore[call-arg]


def test_a_full_buffer_makes_threads_wait(client: lakemq.SyncClient, topic: str) -> None:
    block = b"x" * 100_000
    with client.producer(buffer_max_bytes=1_000_000, batch_max_bytes=200_000) as producer:
        acks = [producer.enqueue(topic, lakemq.NewRecord(block)) for _ in range(300)]
        # 30 MB passed through: what is open at any time is bounded, so most have their ack.
        assert sum(each.done() for each in acks) > 150
        assert producer.flush() == 0
    assert {each.result().offset for each in acks} == set(range(300))


def test_a_batch_comes_behind_what_still_waits(client: lakemq.SyncClient, topic: str) -> None:
    block = b"x" * 100_000
    with client.producer(buffer_max_bytes=300_000, batch_max_bytes=100_000) as producer:
        for _ in range(35):
            producer.enqueue(topic, lakemq.NewRecord(block))
        (placed,) = producer.send_batch(topic, [lakemq.NewRecord(b"batch")])
    assert placed.offset == 35


def test_closing_the_client_fails_what_is_left(node: NodeProcess, topic: str) -> None:
    client = lakemq.connect(node.native, timeout_s=10)
    producer = client.producer(linger_ms=60_000)
    acks = [producer.enqueue(topic, lakemq.NewRecord(b"x")) for _ in range(1000)]
    assert producer.flush(0.3) == 1000
    client.close()
    assert not wait(acks, 20).not_done
    with pytest.raises(lakemq.InvalidRequest):
        acks[0].result()
    with pytest.raises(lakemq.InvalidRequest):
        producer.enqueue(topic, lakemq.NewRecord(b"x"))


def test_a_producer_rides_out_a_broker_that_is_killed(tmp_path: Path) -> None:
    with (
        NodeProcess(tmp_path, ports_kept("native")) as node,
        lakemq.connect(node.native, timeout_s=30) as client,
    ):
        client.create_topic("t")
        with client.producer() as producer:
            node.kill()  # before anything is known of the topic
            acks = [producer.enqueue("t", lakemq.NewRecord(b"%d" % n)) for n in range(1000)]
            assert producer.flush(0.5) == 1000
            node.start()
            for number in range(1000, 3000):
                acks.append(producer.enqueue("t", lakemq.NewRecord(b"%d" % number)))
                if number == 2000:
                    acks[0].result(60)
                    node.kill()  # in the middle of them
                    node.start()
        assert [each.result(60).offset for each in acks] == list(range(3000))
        assert values(client, "t") == [b"%d" % number for number in range(3000)]


def test_what_the_event_loop_has_not_taken_fails_too(fresh_node: NodeProcess) -> None:
    with lakemq.connect(fresh_node.native, timeout_s=10) as client:
        client.create_topic("t")
        producer = client.producer()
        fresh_node.kill()
        acks = [producer.enqueue("t", lakemq.NewRecord(b"x")) for _ in range(100)]
        assert producer.flush(0.3) == 100
        client.close()
        assert not wait(acks, 20).not_done
        for each in acks:
            with pytest.raises(lakemq.InvalidRequest, match="closed"):
                each.result()


def test_times_are_datetimes_too(client: lakemq.SyncClient, topic: str) -> None:
    moment = datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)
    millis = int(moment.timestamp() * 1000)
    client.send(topic, b"a", timestamp_ms=moment)
    client.send_batch(topic, [lakemq.NewRecord(b"b", timestamp_ms=moment)])
    with client.producer() as producer:
        producer.enqueue(topic, lakemq.NewRecord(b"c", timestamp_ms=moment))
    with client.transactional_producer(topic) as writer, writer.transaction() as transaction:
        transaction.send(topic, b"d", timestamp_ms=moment)
    until_s = time.monotonic() + 20
    while len(found := list(client.consume(topic))) < 4:
        assert time.monotonic() < until_s
    assert [each.timestamp_ms for each in found] == [millis] * 4


def test_pandas(client: lakemq.SyncClient, topic: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "key": ["a", "b"],
            "value": [b"1", None],
            "timestamp": pandas.to_datetime([5, 6], unit="s", utc=True),
            "other": [1, 2],
        }
    )
    with client.producer() as producer:
        assert producer.send_pandas(topic, frame[1:])[0].offset == 0
        producer.send_pandas(topic, frame)
        with pytest.raises(lakemq.InvalidRequest, match="no column `value`"):
            producer.send_pandas(topic, frame[["key"]])
        with pytest.raises(lakemq.InvalidRequest, match="takes a DataFrame, not a dict"):
            producer.send_pandas(topic, {"value": [b"1"]})
    found = [(each.key, each.value, each.timestamp_ms) for each in client.consume(topic)]
    assert found == [(b"b", None, 6000), (b"a", b"1", 5000), (b"b", None, 6000)]
    with client.producer(value_serializer="json") as producer:
        producer.send_pandas(topic, frame.drop(columns="value"))
    assert values(client, topic)[3:] == [b'{"other":1}', b'{"other":2}']


def test_polars(client: lakemq.SyncClient, topic: str) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"key": ["a", "b"], "value": [b"1", None], "other": [1.5, 2]})
    with client.producer() as producer:
        producer.send_polars(topic, frame)
        with pytest.raises(lakemq.InvalidRequest, match="takes a DataFrame, not a dict"):
            producer.send_polars(topic, {"value": [b"1"]})
    assert [(each.key, each.value) for each in client.consume(topic)] == [
        (b"a", b"1"),
        (b"b", None),
    ]
    with client.producer(value_serializer="json") as producer:
        producer.send_polars(topic, frame.drop("value"))
    assert values(client, topic)[2:] == [b'{"other":1.5}', b'{"other":2.0}']
