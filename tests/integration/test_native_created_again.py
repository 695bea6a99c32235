"""Goal: a producer that outlives its topic goes on with the one that is created in its place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import lakemq
from tests.support.node import NodeProcess

_names = (f"again-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("again")) as node:
        yield node


async def test_an_asyncio_producer_goes_on(node: NodeProcess) -> None:
    topic = next(_names)
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(topic, partitions=2)
        async with await client.producer() as producer:
            for life in range(3):
                for number in range(10):
                    value = b"%d/%d" % (life, number)
                    placed = await producer.send(topic, value, partition=number % 2)
                    assert placed.offset == number // 2
                found = [each.value async for each in client.consume(topic, partition=0)]
                assert found == [b"%d/%d" % (life, number) for number in range(0, 10, 2)]
                await client.delete_topic(topic)
                await client.create_topic(topic, partitions=2)


async def test_records_under_way_go_to_the_new_topic_or_the_old_one(node: NodeProcess) -> None:
    topic = next(_names)
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(topic, partitions=1)
        async with await client.producer(batch_bytes_max=2000) as producer:
            await producer.send(topic, b"first")
            futures = [
                await producer.enqueue(topic, lakemq.NewRecord(b"%d" % number + b"." * 100))
                for number in range(300)
            ]
            await client.delete_topic(topic)
            await client.create_topic(topic, partitions=1)
            await producer.flush()
            failed = [each for each in futures if each.exception() is not None]
            assert all(isinstance(each.exception(), lakemq.UnknownTopic) for each in failed)
            await producer.send(topic, b"last")
        found = [int(each.value.split(b".")[0]) async for each in client.consume(topic)
                 if each.value and each.value != b"last"]  # fmt: skip
        assert found == sorted(set(found))


def test_a_blocking_client_goes_on(node: NodeProcess) -> None:
    topic = next(_names)
    with lakemq.connect(node.native, timeout_s=10) as client:
        client.create_topic(topic, partitions=1)
        for life in range(3):
            for number in range(3):
                assert client.send(topic, b"%d" % life, partition=0).offset == number
            assert [each.value for each in client.consume(topic)] == [b"%d" % life] * 3
            client.delete_topic(topic)
            client.create_topic(topic, partitions=1)
