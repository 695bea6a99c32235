"""Goal: consumers hand out records by `poll` and `get_many` too, go where they are told, pause,
stop from anywhere, and lose or repeat none of their records over it.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime

import pytest

import lakemq
from lakemq import TopicPartition
from lakemq.plugins.native.sdk.net.connection import Connection
from tests.support.node.node import NodeProcess, unique

COUNT = 90


async def filled(client: lakemq.Client, partitions: int = 3, count: int = COUNT) -> str:
    """A topic whose record `number` is `number` seconds past the epoch."""
    name = unique("polled")
    await client.create_topic(name, partitions, {"timestamp_ahead_max_ms": None})
    await fill(client, name, range(count))
    return name


async def fill(client: lakemq.Client, name: str, numbers: range) -> None:
    async with await client.producer() as producer:
        for number in numbers:
            key = b"%d" % number
            record = lakemq.NewRecord(key, key, timestamp_ms=1000 * number)
            await producer.enqueue(name, record)


def numbers(records: list[lakemq.ConsumerRecord]) -> list[int]:
    return [int(each.value or b"") for each in records]


async def several(consumer: lakemq.Consumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += numbers(await consumer.get_many(count - len(found), 1.0))
    return found


async def test_all_ways_to_read_go_on_behind_each_other(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client)
        group = unique("g")
        async with client.subscribe(name, group=group) as consumer:
            found = await several(consumer, 10)
            for _ in range(5):
                record = await consumer.poll(10.0)
                assert record is not None
                found += numbers([record])
            fetched = consumer.counters.records
            async for record in consumer:
                found += numbers([record])
                if len(found) % 10 == 0:
                    break  # what is left of the chunk comes with the next call
            assert consumer.counters.records <= max(fetched, COUNT)
            found += await several(consumer, COUNT - len(found))
            assert sorted(found) == list(range(COUNT))
            began_s = time.monotonic()
            assert await consumer.get_many(5, 0.3) == []
            assert await consumer.poll(0.3) is None
            assert await consumer.poll(0) is None
            assert 0.5 < time.monotonic() - began_s < 10
            assert sum((await consumer.lag()).values()) == 0
            assert consumer.counters.records == COUNT  # nothing was fetched twice
            await consumer.commit()
        assert (await client.describe_group(group)).lag == 0


async def test_many_take_all_that_is_there(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client, partitions=1, count=1)
        async with client.subscribe(name, group=unique("g")) as consumer:
            assert await several(consumer, 1) == [0]
            for number in range(1, 4):  # a batch each
                await fill(client, name, range(number, number + 1))
            await asyncio.sleep(1)  # all of them have been pushed here
            assert numbers(await consumer.get_many(100, 5.0)) == [1, 2, 3]
            with pytest.raises(lakemq.InvalidRequest, match="max_records is 0"):
                await consumer.get_many(0)
            with pytest.raises(lakemq.InvalidRequest, match="timeout_s is -1"):
                await consumer.poll(-1)


async def test_what_failed_in_hand_is_not_committed(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client, partitions=1)
        group = unique("g")
        with pytest.raises(ZeroDivisionError):
            async with client.subscribe(name, group=group, auto_commit=True) as consumer:
                assert await several(consumer, 20) == list(range(20))
                batch = await consumer.get_many(7, 5.0)
                while batch[-1].offset < 30:
                    batch = await consumer.get_many(7, 5.0)
                1 / 0  # noqa: B018  with a second or later lot of seven in hand
        (at,) = (await client.describe_group(group)).offsets
        assert at.committed_offset == batch[0].offset
        async with client.subscribe(name, group=group) as consumer:
            assert (await several(consumer, 1)) == [at.committed_offset]


async def test_a_cancelled_call_loses_nothing(node: NodeProcess) -> None:
    rng = random.Random(17)
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client, count=0)
        async with client.subscribe(name, group=unique("g")) as consumer:
            found: list[int] = []

            async def read() -> None:
                if rng.random() < 0.5:
                    if (record := await consumer.poll()) is not None:
                        found.extend(numbers([record]))
                else:
                    found.extend(numbers(await consumer.get_many(3)))

            filling = asyncio.create_task(trickle(client, name))
            until_s = time.monotonic() + 60
            while len(found) < COUNT and time.monotonic() < until_s:
                call = asyncio.create_task(read())
                await asyncio.wait([call], timeout=rng.choice([0, 0.001, 0.01, 0.1]))
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            await filling
        assert sorted(found) == list(range(COUNT))


async def trickle(client: lakemq.Client, name: str) -> None:
    for first in range(0, COUNT, 3):
        await fill(client, name, range(first, first + 3))


async def test_stop_ends_every_wait_and_keeps_what_was_handed_out(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client, partitions=1, count=10)
        group = unique("g")
        async with client.subscribe(name, group=group) as consumer:
            found = await several(consumer, 3)
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, consumer.stop)
            async with asyncio.timeout(20):
                async for record in consumer:  # ends, though more could come
                    found += numbers([record])
                assert await consumer.poll() is None and await consumer.get_many() == []
            assert consumer.stopped and found == list(range(10))
            await consumer.commit()
        assert (await client.describe_group(group)).lag == 0
        # In the middle of a chunk, from a thread.
        async with client.subscribe(name, group=unique("g")) as consumer:
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 4:
                    await asyncio.to_thread(consumer.stop)
            assert seen == 4
            assert list(consumer.positions().values()) == [4]


async def test_seeking(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client)
        async with client.subscribe(name, group=unique("g")) as consumer:
            found = await several(consumer, COUNT)
            place = TopicPartition(name, 1)
            mine = [each for each in client_side(await whole(client, name), 1)]
            await consumer.seek(place, 2)
            assert await several(consumer, len(mine) - 2) == mine[2:]
            await consumer.seek(place, "earliest")
            assert await several(consumer, 3) == mine[:3]
            await consumer.seek(place, "latest")
            assert await consumer.get_many(10, 0.5) == []
            await consumer.seek_to_timestamp(datetime.fromtimestamp(COUNT - 5, UTC))
            assert sorted(await several(consumer, 5)) == list(range(COUNT - 5, COUNT))
            assert await consumer.poll(0.3) is None
            await consumer.seek(place, datetime.fromtimestamp(0, UTC))
            # Twice, as many retries do, and with a record in hand: the last one counts.
            await consumer.poll(5.0)
            await consumer.seek(place, 1)
            await consumer.seek(place, 4)
            assert consumer.positions()[place] == 4
            assert await several(consumer, 1) == mine[4:5]
            with pytest.raises(lakemq.InvalidRequest, match="not assigned"):
                await consumer.seek(TopicPartition(name, 7), 0)
            with pytest.raises(lakemq.InvalidRequest, match="start is -1"):
                await consumer.seek(place, -1)
            with pytest.raises(lakemq.InvalidRequest, match="time zone"):
                await consumer.seek_to_timestamp(datetime(2026, 1, 1))
        assert sorted(found) == list(range(COUNT))


async def whole(client: lakemq.Client, name: str) -> list[lakemq.ConsumerRecord]:
    return [each async for each in client.consume_from(name, {0: 0, 1: 0, 2: 0})]


def client_side(records: list[lakemq.ConsumerRecord], partition: int) -> list[int]:
    return numbers([each for each in records if each.partition == partition])


async def test_a_paused_partition_waits_and_goes_on_where_it_stood(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client)
        mine = client_side(await whole(client, name), 2)
        place = TopicPartition(name, 2)
        async with client.subscribe(name, group=unique("g")) as consumer:
            found: list[lakemq.ConsumerRecord] = []
            async with asyncio.timeout(20):
                async for record in consumer:
                    found.append(record)
                    if record.partition == 2:
                        consumer.pause(place)
                        assert consumer.paused == {place}
                        break
                async for record in consumer.until_idle(1.0):
                    assert record.partition != 2
                    found.append(record)
            assert len(found) == COUNT - len(mine) + 1
            assert await consumer.lag() == {
                TopicPartition(name, 0): 0, TopicPartition(name, 1): 0, place: len(mine) - 1
            }  # fmt: skip
            consumer.resume()
            assert await several(consumer, len(mine) - 1) == mine[1:]
            consumer.pause()
            assert consumer.paused == consumer.assignment and len(consumer.paused) == 3
            await consumer.seek(place, 3)
            assert await consumer.get_many(1, 0.5) == []
            consumer.resume(place)
            assert await several(consumer, len(mine) - 3) == mine[3:]


async def test_partitions_of_ones_own_choice(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client)
        records = await whole(client, name)
        parts = [client_side(records, number) for number in range(3)]
        places = [TopicPartition(name, number) for number in range(3)]
        later = datetime.fromtimestamp(COUNT // 2, UTC)
        async with client.assign({places[0]: 5, places[1]: later}) as consumer:
            wanted = [*parts[0][5:], *(each for each in parts[1] if each >= COUNT // 2)]
            assert consumer.group == "" and sorted(await several(consumer, len(wanted))) == sorted(
                wanted
            )
            assert consumer.assignment == {places[0], places[1]}
            with pytest.raises(lakemq.InvalidRequest, match="no group"):
                await consumer.commit()
        group = unique("g")
        async with client.assign([places[2]], group=group, auto_commit=True) as consumer:
            assert await several(consumer, 4) == parts[2][:4]
        async with client.assign([places[2], places[0]], group=group, start="latest") as consumer:
            assert await several(consumer, len(parts[2]) - 4) == parts[2][4:]
            assert await consumer.poll(0.3) is None
            await consumer.commit({places[2]: 6})
        async with client.assign({places[2]: "earliest"}, group=group) as consumer:
            assert await several(consumer, 1) == parts[2][:1]
        async with client.subscribe(name, group=group) as member:
            await several(member, 1)
            async with client.assign([places[2]], group=group) as consumer:
                await consumer.poll(10.0)
                with pytest.raises(lakemq.GroupNotEmpty):
                    await consumer.commit()
        with pytest.raises(lakemq.UnknownPartition):
            async with client.assign([TopicPartition(name, 9)]) as consumer:
                await consumer.poll(10.0)
        with pytest.raises(lakemq.UnknownTopic):
            async with client.assign([TopicPartition(name + "x", 0)]) as consumer:
                await consumer.poll(10.0)
        for wrong in ([], ["x"], {("a", 0): 1}, 7, {places[0]: "first"}):
            with pytest.raises(lakemq.InvalidRequest):
                client.assign(wrong)  # type: ignore[arg-type]
        with pytest.raises(lakemq.InvalidRequest, match="auto_commit needs a group"):
            client.assign(places, auto_commit=True)


async def test_a_group_starts_where_it_is_told(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client)
        parts = [client_side(await whole(client, name), number) for number in range(3)]
        moment = datetime.fromtimestamp(70, UTC)
        async with client.subscribe(name, group=unique("g"), start=moment) as consumer:
            assert sorted(await several(consumer, 20)) == list(range(70, COUNT))
        places = [TopicPartition(name, number) for number in range(3)]
        # What lies behind the end is nowhere: all that is left is read.
        starts = {places[0]: 3, places[1]: "latest", places[2]: 10_000}
        group = unique("g")
        async with client.subscribe(name, group=group, start=starts) as consumer:
            wanted = sorted([*parts[0][3:], *parts[2]])
            assert sorted(await several(consumer, len(wanted))) == wanted
            assert await consumer.poll(0.3) is None
            await consumer.commit()
        async with client.subscribe(name, group=group, start=starts) as consumer:
            assert await consumer.poll(1.0) is None  # what is committed counts
        with pytest.raises(lakemq.InvalidRequest, match="time zone"):
            client.subscribe(name, group=group, start=datetime(2026, 1, 1))


async def test_a_transaction_takes_its_last_partial_batch(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name, out = await filled(client), unique("out")
        await client.create_topic(out, 1)
        group = unique("g")
        async with (
            await client.transactional_producer(unique("t")) as producer,
            client.subscribe(name, group=group) as consumer,
        ):
            done = 0
            while done < COUNT:
                async with producer.transaction(consumer) as transaction:
                    for record in await consumer.get_many(40, timeout_s=1.0):
                        await transaction.send(out, record.value, key=record.key)
                        done += 1
            with pytest.raises(ZeroDivisionError):
                await fill(client, name, range(COUNT, COUNT + 3))
                async with producer.transaction(consumer) as transaction:
                    lost = await several(consumer, 3)
                    1 / 0  # noqa: B018  aborts: its records come again
            async with producer.transaction(consumer) as transaction:
                again = await several(consumer, 3)
                await transaction.send(out, b"%d" % (COUNT + len(again)))
            assert sorted(again) == sorted(lost) == list(range(COUNT, COUNT + 3))
        assert (await client.describe_group(group)).lag == 0
        values = [int(each.value or b"") async for each in client.consume(out)]
        assert sorted(values) == [*range(COUNT), COUNT + 3]


async def test_reading_without_a_group_from_a_time(node: NodeProcess) -> None:
    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client)
        moment = datetime.fromtimestamp(80, UTC)
        found = [int(each.value or b"") async for each in client.consume(name, start=moment)]
        assert sorted(found) == list(range(80, COUNT))
        starts = {0: moment, 1: "latest", 2: 4}
        placed = [each async for each in client.consume_from(name, starts)]
        parts = [client_side(await whole(client, name), number) for number in range(3)]
        wanted = [[each for each in parts[0] if each >= 80], [], parts[2][4:]]
        assert [client_side(placed, number) for number in range(3)] == wanted
        with lakemq.connect(node.native, timeout_s=20) as blocking:
            assert {each.value for each in blocking.consume(name, start=moment)} == {
                b"%d" % each for each in found
            }
            told = list(blocking.consume_from(name, starts))
            assert [client_side(told, number) for number in range(3)] == wanted
            with pytest.raises(lakemq.UnknownPartition):
                list(blocking.consume(name, partition=3))


async def test_brokers_that_do_not_answer_are_waited_for(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When partitions are assigned, and when one is read on behind what retention has deleted."""
    away = ["at first", "still"]
    describe = Connection.describe_topic

    async def describe_topic(connection: Connection, name: str, **_: object) -> lakemq.TopicOffsets:
        if away:
            raise lakemq.Unavailable(away.pop())
        return await describe(connection, name)

    async with lakemq.Client(node.native, timeout_s=20) as client:
        name = await filled(client, 1)
        monkeypatch.setattr(Connection, "describe_topic", describe_topic)
        async with client.subscribe(name, group=unique("g")) as consumer:
            assert await several(consumer, COUNT) == [*range(COUNT)]
            assert not away
            await client.admin.delete_records(name, {0: COUNT - 5})
            away += ["again"]
            await consumer.seek(TopicPartition(name, 0), 0)
            assert await several(consumer, 5) == [*range(COUNT - 5, COUNT)]
            assert not away
