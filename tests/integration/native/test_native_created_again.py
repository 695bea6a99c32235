"""Goal: a producer that outlives its topic goes on with the one that is created in its place, and
one that the broker has forgotten goes on as a new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

import lakemq
from tests.support.node.node import PORTS_FREE, NodeProcess, unique


async def test_an_asyncio_producer_goes_on(node: NodeProcess) -> None:
    topic = unique("again")
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
    topic = unique("again")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(topic, partitions=1)
        async with await client.producer(batch_max_bytes=2000) as producer:
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
        found = [
            int(each.value.split(b".")[0])
            async for each in client.consume(topic)
            if each.value and each.value != b"last"
        ]
        assert found == sorted(set(found))


def test_a_blocking_client_goes_on(node: NodeProcess) -> None:
    topic = unique("again")
    with lakemq.connect(node.native, timeout_s=10) as client:
        client.create_topic(topic, partitions=1)
        for life in range(3):
            for number in range(3):
                assert client.send(topic, b"%d" % life, partition=0).offset == number
            assert [each.value for each in client.consume(topic)] == [b"%d" % life] * 3
            client.delete_topic(topic)
            client.create_topic(topic, partitions=1)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Remembers one producer of a partition."""
    config = f"{PORTS_FREE}[plugins.journal]\nproducers_max = 1\nmaintenance_interval_ms = 100\n"
    with NodeProcess(tmp_path_factory.mktemp("forgetful"), config) as node:
        yield node


async def test_a_producer_that_was_forgotten_goes_on(forgetful: NodeProcess) -> None:
    topic, sent = unique("again"), 0
    async with lakemq.Client(forgetful.native) as client, asyncio.timeout(60):
        await client.create_topic(topic, partitions=1)
        async with await client.producer() as producer, await client.producer() as other:
            await producer.send(topic, b"0")
            while not producer._accumulator.sequences.epoch_of(topic):
                for each in (other, producer):
                    sent += 1
                    assert (await each.send(topic, b"%d" % sent)).offset == sent
                    await asyncio.sleep(0.1)
        found = [each.value async for each in client.consume(topic)]
        assert found == [b"%d" % number for number in range(sent + 1)]


def test_a_blocking_client_that_was_forgotten_goes_on(forgetful: NodeProcess) -> None:
    topic = unique("again")
    with lakemq.connect(forgetful.native) as client, lakemq.connect(forgetful.native) as other:
        client.create_topic(topic, partitions=1)
        client.send(topic, b"0")
        assert client._opened is not None
        (producer,) = client._opened._producers.values()
        sent = 0
        while not producer._accumulator.sequences.epoch_of(topic):
            for each in (other, client):
                sent += 1
                assert each.send(topic, b"%d" % sent).offset == sent
                time.sleep(0.1)
        assert [each.value for each in client.consume(topic)] == [
            b"%d" % number for number in range(sent + 1)
        ]
