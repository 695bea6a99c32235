"""Goal: one stream over many partitions, filters, Arrow, and a reader that does not read."""

from __future__ import annotations

import asyncio
import itertools

import grpc
import psutil  # type: ignore[import-untyped]  # has no types of its own
import pytest

import lakemq
from lakemq.broker_core.api.records.batch import split
from lakemq.plugins.native.proto import native_pb2 as pb
from lakemq.plugins.native.proto.native_pb2_grpc import NativeStub
from tests.support.node.node import NodeProcess, unique


def at(topic: str, partition: int, offset: int = 0, **more: object) -> pb.PartitionOffset:
    return pb.PartitionOffset(topic=topic, partition=partition, offset=offset, **more)  # type: ignore[arg-type]


def many(
    node: NodeProcess, *places: pb.PartitionOffset, count: int = 1000, **more: object
) -> list[pb.FetchManyResponse]:
    request = pb.FetchManyRequest(partitions=places, **more)  # type: ignore[arg-type]
    with grpc.insecure_channel(node.native) as channel:
        return list(itertools.islice(NativeStub(channel).FetchMany(request, timeout=10), count))


def spans(answer: pb.FetchManyResponse) -> list[tuple[int, int]]:
    return [(each.base_offset, each.last_offset) for _, each in split(answer.fetched.batches)]


def test_partitions_are_read_in_turn_and_fail_alone(
    node: NodeProcess, client: lakemq.SyncClient
) -> None:
    topic = unique("many")
    topic_id = client.create_topic(topic, partitions=3).topic_id
    for partition in (0, 1):
        for _ in range(3):
            client.send_batch(topic, [lakemq.NewRecord(b"x")] * 10, partition=partition)
    answers = many(
        node, at(topic, 0), at(topic, 1, 10, end_offset=20), at(topic, 2), at(topic, 9),
        at(topic, 0, 99), at("nowhere", 0), at(topic, 0, topic_id="0" * 32),
        at(topic, 1, 25, topic_id=topic_id), bytes_max=1,
    )  # fmt: skip
    failed = [(each.topic, each.error.code) for each in answers if each.HasField("error")]
    assert sorted(failed) == [
        (topic, "OFFSET_OUT_OF_RANGE"), (topic, "UNKNOWN_PARTITION"), (topic, "UNKNOWN_TOPIC"),
        ("nowhere", "UNKNOWN_TOPIC"),
    ]  # fmt: skip
    good = [(each.partition, *spans(each)) for each in answers if not each.HasField("error")]
    assert good == [
        (0, (0, 9)), (1, (10, 19)), (1, (20, 29)), (0, (10, 19)), (0, (20, 29)),
    ]  # fmt: skip
    with pytest.raises(grpc.RpcError, match="partitions has 0 entries"):
        many(node)


def test_following_sees_every_partition_and_that_a_topic_goes(
    node: NodeProcess, client: lakemq.SyncClient
) -> None:
    topic, other = unique("many"), unique("many")
    client.create_topic(topic, partitions=2)
    client.create_topic(other, partitions=1)
    request = pb.FetchManyRequest(
        partitions=[at(topic, 0), at(topic, 1), at(other, 0)], follow=True
    )
    with grpc.insecure_channel(node.native) as channel:
        answers = NativeStub(channel).FetchMany(request, timeout=20)
        for partition in (1, 0, 1):
            client.send(topic, b"x", partition=partition)
            answer = next(answers)
            assert (answer.topic, answer.partition) == (topic, partition)
        client.delete_topic(other)
        answer = next(answers)
        assert (answer.topic, answer.error.code) == (other, "UNKNOWN_TOPIC")
        client.send(topic, b"x", partition=0)
        assert next(answers).partition == 0
        answers.cancel()


def test_a_filter_leaves_out_batches_in_the_broker_and_records_here(
    node: NodeProcess, client: lakemq.SyncClient
) -> None:
    topic = unique("many")
    client.create_topic(topic, partitions=1)
    for number in range(20):
        key = b"rare" if number == 13 else b"often"
        client.send_batch(
            topic,
            [lakemq.NewRecord(b"%d" % number, key=key, headers=(("n", b"%d" % number),)),
             lakemq.NewRecord(b"beside", key=b"beside")],
            compression=lakemq.Compression.ZSTD,
        )  # fmt: skip
    rare = lakemq.RecordFilter.of(key=b"rare")
    batches = list(client.fetch_batches(topic, 0, 0, wanted=rare))
    assert [batch.header.base_offset for batch in batches] == [26]
    assert [each.value for each in client.consume(topic, wanted=rare)] == [b"13"]
    header = lakemq.RecordFilter.of(key_prefix=b"of", header_prefixes={"n": b"1"})
    assert [each.value for each in client.consume(topic, wanted=header)] == [
        b"1", *(b"%d" % number for number in range(10, 20) if number != 13),
    ]  # fmt: skip
    answers = many(node, at(topic, 0), filter=pb.Filter(all=[pb.Condition(value=b"none")]))
    assert [(each.fetched.batches, each.fetched.next_offset) for each in answers] == [(b"", 40)]
    with pytest.raises(grpc.RpcError, match="1 to 16 conditions"):
        many(node, at(topic, 0), filter=pb.Filter(all=[pb.Condition(value=b"x")] * 17))
    with client.subscribe(topic, group=topic, wanted=rare, auto_commit=True) as consumer:
        for record in consumer:
            assert record.offset == 26
            break
    assert client.describe_group(topic).lag == 0, "what is not wanted counts as handled"


async def test_a_group_reads_arrow(node: NodeProcess) -> None:
    topic = unique("many")
    async with lakemq.Client(node.native) as client:
        await client.create_topic(topic, partitions=1)
        async with await client.producer(batch_max_bytes=1000) as producer:
            for number in range(100):
                key = b"even" if number % 2 == 0 else b"odd"
                await producer.enqueue(topic, lakemq.NewRecord(b"%d" % number, key=key))
        await client.reset_offsets(topic, {lakemq.TopicPartition(topic, 0): 5})
        found: list[int] = []
        wanted = lakemq.RecordFilter.of(key=b"even")
        async with client.subscribe(topic, group=topic, wanted=wanted) as consumer:
            async for batch in consumer.arrow(("offset", "value")):
                assert batch.schema.names == ["offset", "value"]
                assert [b"%d" % each for each in batch["offset"].to_pylist()] == batch[
                    "value"
                ].to_pylist()
                found += batch["offset"].to_pylist()
                await consumer.commit()
                if found[-1] >= 50:
                    break
        assert found == list(range(6, found[-1] + 1, 2))
        (stands,) = (await client.describe_group(topic)).offsets
        assert found[-1] < stands.committed_offset < 100


async def test_a_reader_that_does_not_read_takes_no_memory_of_the_broker(
    node: NodeProcess,
) -> None:
    topic = unique("many")
    size = 1024 * 1024
    async with lakemq.Client(node.native) as client:
        await client.create_topic(topic, partitions=4)
        async with await client.producer() as producer:
            for number in range(128):
                await producer.send(topic, bytes(size), partition=number % 4)
        broker = psutil.Process(node.pid)
        before = broker.memory_info().rss
        channel = grpc.aio.insecure_channel(
            node.native, options=[("grpc.max_receive_message_length", -1)]
        )
        places = [at(topic, partition) for partition in range(4)]
        calls = [
            NativeStub(channel).FetchMany(
                pb.FetchManyRequest(partitions=places, follow=True, bytes_max=8 * size)
            )
            for _ in range(8)
        ]
        for call in calls:
            await call.read()  # the stream is under way; then nobody reads
        await asyncio.sleep(1.5)
        grown = broker.memory_info().rss - before
        for call in calls:
            call.cancel()
        await channel.close()
    # One answer of 8 MiB a stream: as message, serialized, and in gRPC's buffers.
    stored, ahead = 8 * 128 * size, 8 * 5 * 8 * size
    assert grown < ahead < stored, f"{grown:,} bytes"
