"""Goal: transactions through both faces of the SDK against a real node: records of several
partitions and offsets of groups take effect together, once, or not at all.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

import lakemq
from lakemq import TopicPartition
from tests.support.node.node import NodeProcess, unique

pytestmark = pytest.mark.partitions(2)


def values(client: lakemq.SyncClient, topic: str) -> list[bytes | None]:
    return [record.value for record in client.consume(topic)]


def test_records_of_several_partitions_appear_together(
    client: lakemq.SyncClient, topic: str
) -> None:
    with client.transactional_producer(topic) as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, b"a", partition=0)
            transaction.send(topic, b"b", partition=1)
            assert values(client, topic) == []
        assert values(client, topic) == [b"a", b"b"]
        assert producer.last_batch_id == 0


def test_an_exception_aborts(client: lakemq.SyncClient, topic: str) -> None:
    with client.transactional_producer(topic) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send(topic, b"never")
            raise ZeroDivisionError
        with producer.transaction() as transaction:
            transaction.send(topic, b"then")
        transaction = producer.transaction()
        transaction.send(topic, b"neither")
        with pytest.raises(lakemq.InvalidRequest, match="open already"):
            producer.transaction()
        transaction.abort()
    assert values(client, topic) == [b"then"]
    with pytest.raises(lakemq.InvalidRequest, match="closed"):
        producer.transaction()


def test_a_newer_producer_fences_the_older_one(client: lakemq.SyncClient, topic: str) -> None:
    with client.transactional_producer(topic) as old:
        transaction = old.transaction()
        transaction.send(topic, b"old")
        with client.transactional_producer(topic) as new:
            with pytest.raises(lakemq.ProducerFenced):
                transaction.commit()
            with new.transaction() as fresh:
                fresh.send(topic, b"new")
    assert values(client, topic) == [b"new"]


def test_a_transaction_that_takes_too_long_is_aborted(
    client: lakemq.SyncClient, topic: str
) -> None:
    with client.transactional_producer(topic, timeout_ms=300) as producer:
        transaction = producer.transaction()
        transaction.send(topic, b"x" * 2_000_000)
        with pytest.raises(lakemq.TransactionAborted):
            _wait_until_idle(client, topic)
            transaction.commit()
        with producer.transaction() as fresh:
            fresh.send(topic, b"y")
    assert values(client, topic) == [b"y"]


def _wait_until_idle(client: lakemq.SyncClient, name: str) -> None:
    """Until the broker has staged something for it and forgotten that again."""
    seen = False
    for _ in range(2000):
        (found,) = [each for each in client.staging.owners() if each.name == name]
        if seen and not found.staged_batches:
            return
        seen = seen or found.staged_batches > 0
    raise AssertionError("nothing expired")


def test_offsets_of_a_group_without_members(client: lakemq.SyncClient, topic: str) -> None:
    group = f"group-{topic}"
    place = TopicPartition(topic, 1)
    with client.transactional_producer(topic) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.commit_offsets(group, {place: 5})
            raise ZeroDivisionError
        with pytest.raises(lakemq.UnknownGroup):
            client.describe_group(group)
        with producer.transaction() as transaction:
            transaction.send(topic, b"out", partition=0)
            transaction.commit_offsets(group, {place: 7})
        found = {each.partition: each for each in client.describe_group(group).offsets}
        assert found[1].committed_offset == 7
        with pytest.raises(lakemq.UnknownPartition), producer.transaction() as transaction:
            transaction.send(topic, b"never")
            transaction.commit_offsets(group, {TopicPartition(topic, 9): 1})
    assert values(client, topic) == [b"out"]


async def test_consume_transform_produce(node: NodeProcess) -> None:
    source, target, group = unique("transacted"), unique("transacted"), unique("transacted")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(source, partitions=2)
        await client.create_topic(target, partitions=2)
        async with await client.producer() as producer:
            for number in range(100):
                await producer.enqueue(source, lakemq.NewRecord(b"%d" % number))
        async with (
            await client.transactional_producer(group) as producer,
            client.subscribe(source, group=group) as consumer,
        ):
            done = 0
            transaction = producer.transaction()
            async for record in consumer:
                await transaction.send(target, record.value, key=record.value)
                done += 1
                if done % 30 == 0 or done == 100:
                    transaction.commit_offsets(consumer)
                    await transaction.commit()
                    transaction = producer.transaction()
                if done == 100:
                    break
        found = [int(each.value or b"") async for each in client.consume(target)]
        assert sorted(found) == list(range(100))
        assert (await client.describe_group(group)).lag == 0


async def test_an_abort_makes_the_consumer_go_back(node: NodeProcess) -> None:
    source, target = unique("transacted"), unique("transacted")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        for name in (source, target):
            await client.create_topic(name, partitions=1)
        async with await client.producer() as producer:
            for number in range(9):
                await producer.send(source, b"%d" % number)
        async with (
            await client.transactional_producer(source) as producer,
            client.subscribe(source, group=source) as consumer,
        ):
            seen = []
            for abort in (False, True, False, True, False):
                try:
                    async with producer.transaction(consumer) as transaction:
                        async for record in consumer:
                            seen.append(int(record.value or b""))
                            await transaction.send(target, record.value)
                            if seen[-1] % 3 == 2:
                                break
                        if abort:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
        assert seen == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 6, 7, 8]
        assert [each.value async for each in client.consume(target)] == [
            b"%d" % number for number in range(9)
        ]


def test_the_blocking_consumer_goes_back_too(client: lakemq.SyncClient, topic: str) -> None:
    for number in range(4):
        client.send(topic, b"%d" % number, partition=0)
    with (
        client.transactional_producer(topic) as producer,
        client.subscribe(topic, group=topic) as consumer,
    ):
        for abort in (True, False):
            transaction = producer.transaction(consumer)
            got = list(itertools.islice(consumer, 3))
            assert [each.value for each in got] == [b"0", b"1", b"2"]
            transaction.abort() if abort else transaction.commit()
        assert next(iter(consumer)).value == b"3"
    assert client.describe_group(topic).offsets[0].committed_offset == 3


async def test_what_was_made_of_lost_partitions_is_not_committed(node: NodeProcess) -> None:
    topic = unique("transacted")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(topic, partitions=2)
        async with await client.producer() as producer:
            for number in range(20):
                await producer.send(topic, b"in", partition=number % 2)
        feeding = asyncio.create_task(feed(client, topic))
        async with (
            await client.transactional_producer(topic) as producer,
            client.subscribe(topic, group=topic) as first,
        ):
            with pytest.raises(lakemq.MemberFenced, match="given up"):
                async with producer.transaction(first) as transaction:
                    async for _ in first:
                        break
                    await transaction.send(topic, b"out")
                    async with client.subscribe(topic, group=topic) as second:
                        reading = asyncio.create_task(anext(aiter(second)))
                        async for _ in first:
                            if len(first.assignment) == 1:
                                break
                        reading.cancel()
                        await asyncio.gather(reading, return_exceptions=True)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        assert b"out" not in [each.value async for each in client.consume(topic)]


async def feed(client: lakemq.Client, topic: str) -> None:
    async with await client.producer() as producer:
        for number in itertools.count():
            await producer.send(topic, b"more", partition=number % 2)
            await asyncio.sleep(0.02)


async def test_a_member_that_lost_its_session_commits_nothing(node: NodeProcess) -> None:
    topic, group = unique("transacted"), unique("transacted")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(topic, partitions=1)
        async with await client.producer() as producer:
            await producer.send(topic, b"in")
        async with (
            await client.transactional_producer(group) as producer,
            client.subscribe(topic, group=group) as consumer,
        ):
            async for _ in consumer:
                break
            transaction = producer.transaction()
            await transaction.send(topic, b"out")
            transaction.commit_offsets(consumer)
            await consumer.close()
            with pytest.raises((lakemq.UnknownMember, lakemq.MemberFenced)):
                await transaction.commit()
        assert [each.value async for each in client.consume(topic)] == [b"in"]


async def test_a_commit_goes_on_when_its_caller_leaves(node: NodeProcess) -> None:
    topic = unique("transacted")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(topic, partitions=2)
        for number in range(20):
            session = await client.staging.open_sink(topic)
            async with client.staging.writer(session, number, 0) as writer:
                await writer.send(topic, b"%d" % number, partition=number % 2)
                winner = await writer.finish()
            commit = asyncio.create_task(client.staging.commit(session, number, [winner]))
            await asyncio.sleep(number * 0.0003)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            again = await client.staging.open_sink(topic)
            there = {int(each.value or b"") async for each in client.consume(topic)}
            assert (number in there) == (again.last_batch_id == number)
        found = [each.value async for each in client.consume(topic)]
        assert len(found) == len(set(found))
