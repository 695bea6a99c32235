"""Goal: queues against a real broker: sharing, settling, locks, pauses, keys, dead letters."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.plugins.native.cli.queues import queue as queue_app
from tests.support.node.node import NodeProcess, unique


@asynccontextmanager
async def filled(
    node: NodeProcess, records: int, partitions: int = 1
) -> AsyncIterator[tuple[lakemq.Client, str]]:
    """A client and a topic of its own with numbered records, keys 0 to 4."""
    name = unique("queues")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(name, partitions=partitions)
        await fill(client, name, range(records))
        yield client, name


async def fill(client: lakemq.Client, topic: str, numbers: range) -> None:
    async with await client.producer() as producer:
        for number in numbers:
            await producer.enqueue(
                topic, lakemq.NewRecord(b"%d" % number, key=b"%d" % (number % 5))
            )


async def work(queue: lakemq.Queue, found: list[int]) -> None:
    async for message in queue:
        found.append(int(message.value or b""))
        await message.ack()


async def drained(client: lakemq.Client, topic: str, timeout_s: float = 60) -> None:
    """Until nothing is left to do."""
    deadline = time.monotonic() + timeout_s
    while not (found := await client.admin.queues(topic=topic)) or found[0].backlog:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.02)


async def test_consumers_share_one_partition_and_each_record_comes_once(node: NodeProcess) -> None:
    async with filled(node, 500) as (client, topic):
        found: list[list[int]] = [[], [], []]
        queues = [client.queue(topic, group="w", prefetch=10) for _ in found]
        tasks = [asyncio.create_task(work(*each)) for each in zip(queues, found, strict=True)]
        await drained(client, topic)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(itertools.chain(*found)) == list(range(500))
        assert all(found), "one consumer got nothing"
        (described,) = await client.admin.queues("w", topic)
        assert (described.consumers, described.partitions[0].start_offset) == (3, 500)


async def test_headers_times_and_compression_come_through(node: NodeProcess) -> None:
    async with filled(node, 0) as (client, topic):
        async with await client.producer(compression=lakemq.Compression.ZSTD) as producer:
            headers = (("h", b"1"), ("n", None))
            await producer.send(topic, None, key=b"k", headers=headers, timestamp_ms=77)
            await producer.send(topic, b"x" * 100_000)
        async with client.queue(topic, group="w") as queue, asyncio.timeout(60):
            one, two = await anext(queue), await anext(queue)
        assert (one.value, one.key, one.headers, one.timestamp_ms) == (None, b"k", headers, 77)
        assert two.value == b"x" * 100_000 and (two.offset, two.attempt) == (1, 1)


async def test_nack_comes_again_after_its_pause_and_release_does_not_count(
    node: NodeProcess,
) -> None:
    async with filled(node, 1) as (client, topic), asyncio.timeout(60):
        queue = client.queue(topic, group="w", backoff_ms=200)
        first = await anext(queue)
        began = time.monotonic()
        await first.nack()
        second = await anext(queue)
        assert time.monotonic() - began > 0.19 and second.attempt == 2
        await second.release()
        third = await anext(queue)
        assert third.attempt == 2
        await third.nack(delay_ms=0)
        fourth = await anext(queue)
        assert fourth.attempt == 3
        await fourth.ack()
        with pytest.raises(lakemq.LockLost):
            await fourth.ack()


async def test_a_lock_ends_and_can_be_extended(node: NodeProcess) -> None:
    async with filled(node, 2) as (client, topic), asyncio.timeout(60):
        first = client.queue(topic, group="w", lock_ms=600, prefetch=2)
        slow, kept = await anext(first), await anext(first)
        second = client.queue(topic, group="w")
        waiting = asyncio.create_task(anext(second))
        for _ in range(4):
            await asyncio.sleep(0.25)
            await kept.extend()
        again = await waiting
        assert (again.offset, again.attempt) == (slow.offset, 2)
        with pytest.raises(lakemq.LockLost):
            await slow.ack()
        await kept.ack()
        await again.ack()
        await drained(client, topic)


async def test_what_waits_in_the_consumer_keeps_its_lock(node: NodeProcess) -> None:
    async with filled(node, 3) as (client, topic), asyncio.timeout(60):
        queue = client.queue(topic, group="w", lock_ms=600)
        for number in range(3):
            message = await anext(queue)
            assert (message.offset, message.attempt) == (number, 1)
            await message.ack()
            await asyncio.sleep(0.7)


async def test_a_consumer_that_is_stuck_gives_back_what_waits(node: NodeProcess) -> None:
    async with filled(node, 3) as (client, topic), asyncio.timeout(60):
        stuck = client.queue(topic, group="w", lock_ms=400)
        await anext(stuck)
        other = client.queue(topic, group="w")
        attempts = {}
        for _ in range(3):
            message = await anext(other)
            attempts[message.offset] = message.attempt
            await message.ack()
        assert attempts.keys() == {0, 1, 2} and attempts[0] > 1
        assert attempts[1] == attempts[2] == 1


async def test_keys_keep_their_order_when_records_fail(node: NodeProcess) -> None:
    async with filled(node, 200) as (client, topic), asyncio.timeout(40):
        done: dict[bytes | None, list[int]] = {}
        in_hand: Counter[bytes | None] = Counter()

        async def handle(queue: lakemq.Queue) -> None:
            async for message in queue:
                in_hand[message.key] += 1
                assert in_hand[message.key] == 1, "a key is in two places"
                await asyncio.sleep(0.001)
                in_hand[message.key] -= 1
                number = int(message.value or b"")
                if number % 7 == 0 and message.attempt < 3:
                    await message.nack(delay_ms=5)
                else:
                    done.setdefault(message.key, []).append(number)
                    await message.ack()

        queues = [client.queue(topic, group="w", order="key") for _ in range(3)]
        tasks = [asyncio.create_task(handle(queue)) for queue in queues]
        await drained(client, topic, 30)
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert done == {
            b"%d" % key: [each for each in range(200) if each % 5 == key] for key in range(5)
        }


async def test_poison_goes_to_the_dead_letters_once(node: NodeProcess) -> None:
    async with filled(node, 20) as (client, topic), asyncio.timeout(60):
        options = lakemq.QueueOptions(
            attempts_max=3, dead_letter=f"{topic}-dead", backoff_ms=1, lock_ms=5000
        )
        async with client.queue(topic, group="w", **options) as queue:
            attempts: Counter[int] = Counter()

            async def handle() -> None:
                async for message in queue:
                    attempts[message.offset] += 1
                    if message.offset == 3:
                        await message.reject()
                    elif message.offset % 5 == 0:
                        await message.nack()
                    else:
                        await message.ack()

            task = asyncio.create_task(handle())
            await drained(client, topic)
            task.cancel()
        letters = [each async for each in client.consume(f"{topic}-dead")]
        assert sorted(int(each.value or b"") for each in letters) == [0, 3, 5, 10, 15]
        assert {at: count for at, count in attempts.items() if count > 1} == dict.fromkeys(
            (0, 5, 10, 15), 3
        )
        told = {int(each.value or b""): dict(each.headers) for each in letters}
        assert told[3]["lakemq-dead-reason"] == b"rejected"
        assert told[5] == {
            "lakemq-dead-group": b"w",
            "lakemq-dead-topic": topic.encode(),
            "lakemq-dead-partition": b"0",
            "lakemq-dead-offset": b"5",
            "lakemq-dead-attempts": b"3",
            "lakemq-dead-reason": b"attempts",
        }
        assert {each.key for each in letters} == {b"0", b"3"}


async def test_settings_hold_for_all_and_are_changed_by_operators(node: NodeProcess) -> None:
    async with filled(node, 1) as (client, topic):
        async with client.queue(topic, group="w", lock_ms=5000):
            with pytest.raises(lakemq.InvalidRequest, match="lock_ms"):
                await client.queue(topic, group="w", lock_ms=6000).open()
            assert (await client.admin.alter_queue("w", topic, lock_ms=6000))["lock_ms"] == 6000
            with pytest.raises(lakemq.GroupNotEmpty):
                await client.admin.alter_queue("w", topic, order="key")
            with pytest.raises(lakemq.GroupNotEmpty):
                await client.admin.reset_queue("w", topic, {0: -1})
        for wrong in (
            lakemq.QueueOptions(attempts_max=3),
            lakemq.QueueOptions(order="sideways"),
            lakemq.QueueOptions(dead_letter=topic),
            lakemq.QueueOptions(prefetch=10**6),
            lakemq.QueueOptions(lock_ms="soon"),  # type: ignore[typeddict-item]  # wrong on purpose
        ):
            with pytest.raises(lakemq.InvalidRequest):
                await client.queue(topic, group="x", **wrong).open()
        with pytest.raises(lakemq.UnknownTopic):
            await client.queue("nowhere", group="x").open()
        with pytest.raises(lakemq.NotAuthorized):
            await client.queue("_lakemq_offsets", group="x").open()


async def test_latest_begins_behind_what_is_there_and_reset_goes_back(node: NodeProcess) -> None:
    async with filled(node, 5) as (client, topic), asyncio.timeout(60):
        async with client.queue(topic, group="w", start="latest") as queue:
            await fill(client, topic, range(100, 101))
            message = await anext(queue)
            assert message.value == b"100"
            await message.ack()
        await client.admin.reset_queue("w", topic, {0: 3})
        async with client.queue(topic, group="w") as queue:
            assert [(await anext(queue)).offset for _ in range(3)] == [3, 4, 5]
        with pytest.raises(lakemq.OffsetOutOfRange):
            await client.admin.reset_queue("w", topic, {0: 7})
        await client.admin.delete_queue("w", topic)
        assert await client.admin.queues("w", topic) == []
        async with client.queue(topic, group="w") as queue:
            assert (await anext(queue)).offset == 0


async def test_deleted_records_new_partitions_and_a_topic_made_anew(node: NodeProcess) -> None:
    async with filled(node, 5) as (client, topic), asyncio.timeout(60):
        async with client.queue(topic, group="w", prefetch=1) as queue:
            held = await anext(queue)
            await client.admin.delete_records(topic, {0: 4})
            with pytest.raises(lakemq.LockLost):
                await held.ack()
                await asyncio.sleep(0.05)
                await held.ack()
            assert (await anext(queue)).offset == 4
            await client.admin.add_partitions(topic, 2)
            async with await client.producer() as producer:
                await producer.send(topic, b"new", partition=1)
        async with client.queue(topic, group="w") as queue:
            seen = {(await anext(queue)).partition, (await anext(queue)).partition}
            assert seen == {0, 1}
            await client.delete_topic(topic)
            await client.create_topic(topic, 1)
            with pytest.raises(lakemq.UnknownTopic):
                await anext(queue)
        await fill(client, topic, range(1))
        async with client.queue(topic, group="w") as queue:
            assert (await anext(queue)).offset == 0


async def test_a_consumer_that_does_not_read_holds_no_more_than_its_prefetch(
    node: NodeProcess,
) -> None:
    async with filled(node, 1000) as (client, topic), asyncio.timeout(60):
        await client.queue(topic, group="w", prefetch=50).open()
        deadline = time.monotonic() + 60
        while (await client.admin.queues("w", topic))[0].partitions[0].held < 50:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        (described,) = await client.admin.queues("w", topic)
        assert (described.partitions[0].held, described.backlog) == (50, 1000)


async def test_batches_are_quick(node: NodeProcess) -> None:
    async with filled(node, 20_000) as (client, topic), asyncio.timeout(60):
        found: list[int] = []
        async with client.queue(topic, group="w", prefetch=5000) as queue:
            while len(found) < 20_000:
                messages = await queue.next_batch()
                found += [each.offset for each in messages]
                await queue.ack(messages)
        assert found == list(range(20_000))


def test_blocking(node: NodeProcess) -> None:
    with lakemq.connect(node.native) as client:
        client.create_topic("sync-queue", 1)
        client.send_batch("sync-queue", [lakemq.NewRecord(b"%d" % each) for each in range(10)])
        with client.queue("sync-queue", group="w", backoff_ms=1) as queue:
            for message in queue:
                if message.offset == 5 and message.attempt == 1:
                    message.nack()
                elif message.offset == 5:
                    message.ack()
                    break
                elif message.offset < 9:
                    message.ack()
                else:
                    message.extend()
            with pytest.raises(lakemq.LockLost):
                message.ack()
        (described,) = client.admin.queues("w", "sync-queue")
        assert (described.backlog, described.consumers) == (1, 0)


def test_the_command_line(node: NodeProcess) -> None:
    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(queue_app, [*words, "--bootstrap", node.native])
        assert result.exit_code == code, result.output
        return result.output

    with lakemq.connect(node.native) as client:
        client.create_topic("cli-queue", 2)
        client.send("cli-queue", b"x", partition=1)
    told = run("alter", "crew", "-t", "cli-queue", "--lock-ms", "7000", "--order", "key")
    assert "lock_ms=7000" in told and "order=key" in told
    assert "crew" in run("list") and "order=key" in run("describe", "crew", "-t", "cli-queue")
    run("reset", "crew", "-t", "cli-queue", "--to", "latest")
    with lakemq.connect(node.native) as client:
        assert client.admin.queues("crew")[0].backlog == 0
    assert "no queue" in run("describe", "crew", "-t", "elsewhere", code=4)
    run("delete", "crew", "-t", "cli-queue", "-y")
    assert "crew" not in run("list")
