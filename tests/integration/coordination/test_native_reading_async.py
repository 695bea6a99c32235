"""Goal: the asyncio client reads from offsets and until nothing comes, as the blocking one."""

from __future__ import annotations

import asyncio
import time

import lakemq
from tests.support.node.node import NodeProcess, unique

VALUES = [b"%d" % number for number in range(40)]


async def filled(client: lakemq.Client, name: str) -> None:
    await client.create_topic(name, 3)
    async with await client.producer() as producer:
        # One batch for each partition: offsets lie within it.
        await producer.send_batch(name, [lakemq.NewRecord(each, key=each) for each in VALUES])


async def test_each_partition_is_read_from_its_own_offset(node: NodeProcess) -> None:
    name = unique("starts")
    async with lakemq.Client(node.native, timeout_s=20) as client:
        await filled(client, name)
        every = [each async for each in client.consume_from(name, {0: 0, 1: 0, 2: 0})]
        assert sorted(each.value for each in every) == sorted(VALUES)
        assert {each.topic for each in every} == {name}
        starts = {0: 3, 2: 5}
        found = [each async for each in client.consume_from(name, starts)]
        assert {(each.partition, each.offset) for each in found} == {
            (each.partition, each.offset)
            for each in every
            if each.offset >= starts.get(each.partition, len(VALUES))
        }
        for number in starts:  # in order, and no record twice
            offsets = [each.offset for each in found if each.partition == number]
            assert offsets == list(range(starts[number], starts[number] + len(offsets)))
        odd = lakemq.RecordFilter.of(key_prefix=b"7")
        (only,) = [each async for each in client.consume_from(name, {0: 0, 1: 0, 2: 0}, wanted=odd)]
        assert only.key == b"7"
        with lakemq.connect(node.native, timeout_s=20) as blocking:
            told = [(each.partition, each.offset) for each in blocking.consume_from(name, starts)]
        assert sorted(told) == sorted((each.partition, each.offset) for each in found)


async def test_what_comes_later_is_read_with_follow(node: NodeProcess) -> None:
    name = unique("followed")
    async with lakemq.Client(node.native, timeout_s=20) as client:
        await filled(client, name)
        ends = await client.offsets_for_timestamp(name, 2**52)
        late = client.consume_from(name, ends, follow=True)
        first = asyncio.ensure_future(anext(aiter(late)))
        async with await client.producer() as producer:
            sent = await producer.send(name, b"late")
        async with asyncio.timeout(20):
            record = await first
        assert (record.value, record.partition, record.offset) == (
            b"late", sent.partition, sent.offset
        )  # fmt: skip
        await late.aclose()  # type: ignore[attr-defined]  # an async generator


async def test_a_member_reads_until_nothing_comes_and_goes_on(node: NodeProcess) -> None:
    name = unique("idle")
    async with lakemq.Client(node.native, timeout_s=20) as client:
        await filled(client, name)
        async with client.subscribe(name, group=unique("g"), start="earliest") as consumer:
            found: list[bytes] = []
            while len(found) < len(VALUES):  # the group may take its time to assign
                found += [each.value async for each in consumer.until_idle(0.5)]
            assert sorted(found) == sorted(VALUES)
            began_s = time.monotonic()
            assert [each async for each in consumer.until_idle(0.5)] == []
            assert 0.4 < time.monotonic() - began_s < 10
            async with await client.producer() as producer:
                await producer.send(name, b"more")
            assert [each.value async for each in consumer.until_idle(2.0)] == [b"more"]
            await consumer.commit()
            committed = sum(consumer.positions().values())
        assert committed == len(VALUES) + 1
