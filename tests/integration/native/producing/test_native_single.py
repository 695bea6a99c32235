"""Goal: records that are produced one by one keep their order, whatever they are made of."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import lakemq
from tests.support.node.node import NodeProcess


async def test_records_of_all_shapes_keep_their_order(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    block = lakemq.Columns([b"block"])
    async with (
        asyncio.timeout(60),
        lakemq.Client(node.native) as opened,
        # Of a few records each, so that batches are full all the time.
        await opened.producer(batch_max_bytes=200, buffer_max_bytes=2000) as producer,
    ):
        acks, blocks = [], []
        for number in range(400):
            plain = lakemq.NewRecord(b"%d" % number)
            keyed = plain._replace(key=b"k")
            kinds = (plain, None), (keyed, None), (plain, 0), (plain, None)
            record, partition = kinds[number % 7 % 4]
            acks.append(await producer.enqueue(topic, record, partition=partition))
            if number % 50 == 9:
                blocks.append(asyncio.create_task(producer.send_batch(topic, block)))
            if number % 30 == 9:
                await asyncio.sleep(0)
        places = [await each for each in acks]
        await asyncio.gather(*blocks)
    found = [record.value for record in client.consume(topic)]
    assert [each for each in found if each != b"block"] == [b"%d" % n for n in range(400)]
    assert found.count(b"block") == len(blocks) == 8
    assert [found[place.offset] for place in places] == [b"%d" % n for n in range(400)]


@pytest.mark.partitions(2)
async def test_partitions_and_callbacks_that_are_named_count(node: NodeProcess, topic: str) -> None:
    called: list[object] = []
    plain = lakemq.NewRecord(b"a")
    async with (
        asyncio.timeout(60),
        lakemq.Client(node.native) as opened,
        await opened.producer() as producer,
    ):
        await producer.send(topic, b"first")
        for named in (0, 1):
            acks = [
                await producer.enqueue(topic, plain),
                await producer.enqueue(topic, plain, partition=named),
                await producer.enqueue(topic, plain),
            ]
            first, second, third = [(await each).partition for each in acks]
            assert (second, third) == (named, first)
        acks = [
            await producer.enqueue(topic, plain),
            await producer.enqueue(
                topic, plain, on_delivery=lambda *outcome: called.append(outcome)
            ),
        ]
        places = await asyncio.gather(*acks)
        await asyncio.sleep(0)
    assert called == [(None, places[1])]


@pytest.mark.partitions(2)
async def test_what_is_like_bytes_and_integers_is_taken(
    node: NodeProcess, client: lakemq.SyncClient, topic: str
) -> None:
    headers = (("h", bytearray(b"1")),)
    record = lakemq.NewRecord(memoryview(b"a"), bytearray(b"key"), headers)  # type: ignore[arg-type]
    options = {"batch_max_bytes": np.int64(1 << 20), "delivery_timeout_ms": np.int32(60_000)}
    async with (
        asyncio.timeout(60),
        lakemq.Client(node.native) as opened,
        await opened.producer(**options) as producer,
    ):
        acks = [
            await producer.enqueue(topic, record),
            await producer.enqueue(topic, record, partition=np.int64(1)),
            await producer.enqueue(topic, (b"a", b"key", (("h", b"1"),), None)),  # type: ignore[arg-type]
        ]
        columns = lakemq.Columns([memoryview(b"a")], [bytearray(b"key")])  # type: ignore[list-item]
        await producer.send_batch(topic, columns, partition=np.int64(0))
        places = await asyncio.gather(*acks)
    assert places[0].partition == places[2].partition and places[1].partition == 1
    found = list(client.consume(topic))
    assert [(each.value, each.key) for each in found] == [(b"a", b"key")] * 4
    assert sorted(each.headers for each in found) == [(), *[(("h", b"1"),)] * 3]
