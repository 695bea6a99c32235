"""Goal: the native protocol and both faces of the SDK against a real node."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

import grpc
import pytest

import lakemq
from lakemq.broker_core.api.records.batch import ProducerStamp, encode
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from tests.support.node.node import NodeProcess, unique


def values(client: lakemq.SyncClient, topic: str) -> list[bytes | None]:
    return [record.value for record in client.consume(topic)]


# -- topics


def test_topics_are_created_described_and_deleted(client: lakemq.SyncClient) -> None:
    name = unique("topic")
    made = client.create_topic(name, partitions=3, config={"retention_ms": "none"})
    assert (made.name, len(made.partitions), made.config["retention_ms"]) == (name, 3, "none")
    assert client.describe_topic(name).topic_id == made.topic_id
    assert name in [each.name for each in client.topics()]
    client.delete_topic(name)
    with pytest.raises(lakemq.UnknownTopic, match=name):
        client.describe_topic(name)
    again = client.create_topic(name)
    assert again.topic_id != made.topic_id
    assert values(client, name) == []


def test_wrong_requests_are_refused_by_name(client: lakemq.SyncClient, topic: str) -> None:
    with pytest.raises(lakemq.TopicExists, match=topic):
        client.create_topic(topic)
    with pytest.raises(lakemq.InvalidTopicName, match="'/'"):
        client.create_topic("a/b")
    with pytest.raises(lakemq.InvalidRequest, match="config 'retention' is unknown"):
        client.create_topic(unique("topic"), config={"retention": "1"})
    with pytest.raises(lakemq.InvalidRequest, match="partitions"):
        client.create_topic(unique("topic"), partitions=-1)
    with pytest.raises(lakemq.UnknownTopic, match="nowhere"):
        client.delete_topic("nowhere")
    with pytest.raises(lakemq.UnknownTopic, match="nowhere"):
        client.send("nowhere", b"x")
    with pytest.raises(lakemq.UnknownPartition, match="partition 7"):
        client.send(topic, b"x", partition=7)
    with pytest.raises(lakemq.OffsetOutOfRange):
        list(client.fetch_batches(topic, 0, 5))


# -- records


def test_a_record_comes_back_whole(client: lakemq.SyncClient, topic: str) -> None:
    headers = (("a", b"1"), ("a", None), ("ü", b""))
    placed = client.send(topic, b"value", key=b"key", headers=headers, timestamp_ms=1234)
    assert (placed.offset, placed.acks) == (0, lakemq.Acks.LEADER)
    client.send(topic, None, key=b"key")
    first, tombstone = client.consume(topic)
    assert first == lakemq.Record(0, 1234, b"key", b"value", headers)  # type: ignore[arg-type]
    assert (tombstone.offset, tombstone.value) == (1, None)


def test_batches_keep_order_and_start_where_told(client: lakemq.SyncClient, topic: str) -> None:
    records = [lakemq.NewRecord(b"%d" % number, timestamp_ms=number * 10) for number in range(5000)]
    for start in range(0, 5000, 500):
        client.send_batch(topic, records[start : start + 500], compression=lakemq.Compression.ZSTD)
    assert values(client, topic) == [record.value for record in records]
    assert [each.offset for each in client.consume(topic, start=4990)] == list(range(4990, 5000))
    assert client.offsets_for_timestamp(topic, 12_345) == {0: 1235}
    spans = [batch.header for batch in client.fetch_batches(topic, 0, 700, 1100)]
    assert [(each.base_offset, each.last_offset) for each in spans] == [(500, 999), (1000, 1499)]


def test_keys_choose_partitions(client: lakemq.SyncClient) -> None:
    name = unique("topic")
    client.create_topic(name, partitions=4)
    keys = [b"key-%d" % number for number in range(100)]
    client.send_batch(name, [lakemq.NewRecord(key, key=key) for key in keys])
    assert sorted(each.key or b"" for each in client.consume(name)) == sorted(keys)
    filled = [
        each.partition for each in client.describe_topic(name).partitions if each.high_watermark
    ]
    assert filled == [0, 1, 2, 3]


def test_following_sees_what_is_produced_later(client: lakemq.SyncClient) -> None:
    name = unique("topic")
    client.create_topic(name, partitions=2)
    seen: list[bytes | None] = []

    def follow() -> None:
        for record in itertools.islice(client.consume(name, follow=True), 20):
            seen.append(record.value)

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(20):
        client.send(name, b"%d" % number, key=b"%d" % number)
    reader.join(10)
    assert not reader.is_alive()
    assert sorted(seen, key=lambda value: int(value or b"")) == [b"%d" % n for n in range(20)]


def test_a_topic_created_again_is_told_from_the_old_one(client: lakemq.SyncClient) -> None:
    name = unique("topic")
    old = client.create_topic(name).topic_id
    client.delete_topic(name)
    client.create_topic(name)
    with pytest.raises(lakemq.UnknownTopic, match="is gone"):
        list(client.fetch_batches(name, 0, 0, topic_id=old))


def test_no_broker_is_one_clear_error() -> None:
    nobody = lakemq.connect("127.0.0.1:1", timeout_s=1)
    with nobody, pytest.raises(lakemq.Unavailable, match=r"127\.0\.0\.1:1"):
        nobody.topics()


# -- raw requests


def produce(
    node: NodeProcess, topic: str, *batches: bytes, acks: int = 1
) -> list[pb.ProduceResponse]:
    with grpc.insecure_channel(node.native) as channel:
        requests = (
            pb.ProduceRequest(request_id=number, topic=topic, acks=acks, batch=batch)  # type: ignore[arg-type]
            for number, batch in enumerate(batches)
        )
        return list(NativeStub(channel).Produce(requests))


def batch_of(*values: bytes, sequence: int = -1, producer: int = -1) -> bytes:
    return encode(lakemq.Columns(values), now_ms=1, producer=ProducerStamp(producer, 0, sequence))


def test_bad_batches_are_refused_in_place_and_the_stream_goes_on(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    good = batch_of(b"a")
    flipped = bytearray(good)
    flipped[-1] ^= 1
    answers = produce(node, topic, b"", good[:50], bytes(flipped), b"x" * 500, good)
    assert [each.error.code for each in answers] == ["CORRUPT_BATCH"] * 4 + [""]
    assert answers[4].base_offset == 0
    assert values(client, topic) == [b"a"]


def test_a_repeated_batch_is_stored_once(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    with grpc.insecure_channel(node.native) as channel:
        mine = NativeStub(channel).InitProducer(pb.InitProducerRequest()).producer_id
    first, second = (
        batch_of(b"a", b"b", sequence=0, producer=mine),
        batch_of(b"c", sequence=2, producer=mine),
    )
    answers = produce(node, topic, first, second, second, first)
    assert [(each.base_offset, each.duplicate) for each in answers] == [
        (0, False), (2, False), (2, True), (0, True),
    ]  # fmt: skip
    gap = produce(node, topic, batch_of(b"z", sequence=9, producer=mine))
    assert gap[0].error.code == "OUT_OF_ORDER_SEQUENCE"
    assert values(client, topic) == [b"a", b"b", b"c"]


def test_a_batch_over_the_limit_is_refused(node: NodeProcess, client: lakemq.SyncClient) -> None:
    name = unique("topic")
    client.create_topic(name, config={"batch_max_bytes": "2000"})
    with pytest.raises(lakemq.BatchTooLarge, match="2000"):
        client.send(name, b"x" * 3000)
    client.send(name, b"x" * 1000)


def test_an_oversized_message_is_refused_and_the_broker_lives(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    with pytest.raises(lakemq.BatchTooLarge, match=f"topic {topic} takes 16777216"):
        client.send(topic, b"x" * (20 * 1024 * 1024))
    with pytest.raises(grpc.RpcError, match="larger than max"):
        produce(node, topic, b"x" * (20 * 1024 * 1024))
    assert client.send(topic, b"small").offset == 0


def test_acks_memory_is_answered_and_said(node: NodeProcess, topic: str) -> None:
    (answer,) = produce(node, topic, batch_of(b"a"), acks=0)
    assert answer.error.code == "" and answer.acks in (pb.ACKS_MEMORY, pb.ACKS_LEADER)


# -- asyncio


async def test_the_asyncio_producer_keeps_order_per_key(node: NodeProcess) -> None:
    name = unique("topic")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(name, partitions=3)
        async with await client.producer(batch_max_bytes=2000) as producer:
            futures = [
                await producer.enqueue(name, lakemq.NewRecord(b"%d" % n, key=b"k%d" % (n % 7)))
                for n in range(2000)
            ]
            await producer.flush()
            placed = [each.result() for each in futures]
        per_key: dict[bytes, list[int]] = {}
        async for record in client.consume(name):
            per_key.setdefault(record.key or b"", []).append(int(record.value or b""))
    assert {key: len(found) for key, found in per_key.items()} == {
        b"k%d" % k: len(range(k, 2000, 7)) for k in range(7)
    }
    assert all(found == sorted(found) for found in per_key.values())
    assert len({(each.partition, each.offset) for each in placed}) == 2000


async def test_refused_records_fail_alone(node: NodeProcess) -> None:
    name = unique("topic")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(name, config={"batch_max_bytes": "2000"})
        async with await client.producer() as producer:
            with pytest.raises(lakemq.BatchTooLarge):
                await producer.send(name, b"x" * 3000)
            assert (await producer.send(name, b"y")).offset == 0


async def test_the_buffer_is_bounded(node: NodeProcess) -> None:
    name = unique("topic")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(name)
        async with await client.producer(buffer_max_bytes=10_000) as producer:
            for _ in range(300):
                await producer.enqueue(name, lakemq.NewRecord(b"x" * 1000))
                assert producer._accumulator.buffered_bytes <= 11_100
            await producer.flush()
        assert (await client.describe_topic(name)).partitions[0].high_watermark == 300


async def test_a_following_reader_ends_when_it_leaves(node: NodeProcess) -> None:
    name = unique("topic")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(name, partitions=2)
        async with await client.producer() as producer:
            await producer.send(name, b"x", key=b"k")
        async with asyncio.timeout(60):
            async for record in client.consume(name, follow=True):
                assert record.value == b"x"
                break


def test_data_survives_a_restart(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    with node, lakemq.connect(node.native) as client:
        client.create_topic("t", partitions=2)
        client.send_batch("t", [lakemq.NewRecord(b"%d" % n, key=b"%d" % n) for n in range(100)])
        before = sorted(client.consume("t"))
    with node, lakemq.connect(node.native) as client:
        assert sorted(client.consume("t")) == before
        client.send("t", b"more", key=b"1")
        assert len(list(client.consume("t"))) == 101


async def test_what_is_no_record_is_refused_at_once(node: NodeProcess) -> None:
    name = unique("topic")
    async with lakemq.Client(node.native) as client, asyncio.timeout(60):
        await client.create_topic(name)
        async with await client.producer() as producer:
            with pytest.raises(lakemq.InvalidRequest, match="value is of type str"):
                await producer.send(name, "text")  # type: ignore[arg-type]
            with pytest.raises(lakemq.InvalidRequest, match="values has 2"):
                await producer.send_batch(name, lakemq.Columns([b"a", b"b"], [b"k"]), partition=0)
            assert (await producer.send(name, b"good", partition=0)).offset == 0
