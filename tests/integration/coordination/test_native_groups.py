"""Goal: consumer groups against a real broker: processes killed in the middle, a broker killed,
static members, late commits, the command line.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.plugins.native.cli.groups import group
from tests.support.node.node import NodeProcess, ports_kept, unique

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def filled(
    node: NodeProcess, records: int = 0, partitions: int = 4
) -> AsyncIterator[tuple[lakemq.Client, str]]:
    """A client and a topic of its own with numbered records."""
    name = unique("groups")
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.create_topic(name, partitions=partitions)
        await fill(client, name, range(records))
        yield client, name


async def fill(client: lakemq.Client, topic: str, numbers: range) -> None:
    async with await client.producer() as producer:
        for number in numbers:
            await producer.enqueue(topic, lakemq.NewRecord(b"%d" % number, key=b"%d" % number))


async def until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def read(consumer: lakemq.Consumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(60):
        async for record in consumer:
            found.append(int(record.value or b""))
            if len(found) == count:
                return found
    raise AssertionError("the consumer ended")


async def test_a_group_goes_on_from_its_commit(node: NodeProcess) -> None:
    async with filled(node, 300) as (client, topic):
        async with client.subscribe([topic], group=topic) as consumer:
            first = await read(consumer, 120)
            await consumer.commit()
            await read(consumer, 50)
        async with client.subscribe([topic], group=topic) as consumer:
            second = await read(consumer, 180)
        assert sorted(first + second) == list(range(300))
        description = await client.describe_group(topic)
        assert (description.state, description.lag) == ("empty", 180)
        async with client.subscribe([topic], group=topic + "-late", start="latest") as consumer:
            reader = asyncio.create_task(read(consumer, 1))
            await until(lambda: bool(consumer.assignment))
            await fill(client, topic, range(300, 301))
            assert await reader == [300]


async def test_auto_commit_leaves_out_what_was_not_handled(node: NodeProcess) -> None:
    async with filled(node, 10, partitions=1) as (client, topic):
        with pytest.raises(ZeroDivisionError):
            async with client.subscribe(topic, group=topic, auto_commit=True) as consumer:
                async for record in consumer:
                    if record.offset == 6:
                        1 / 0  # noqa: B018  fails while it has record 6 in hand
        assert (await client.describe_group(topic)).offsets[0].committed_offset == 6
        async with client.subscribe(
            topic, group=topic, auto_commit=True, auto_commit_interval_ms=50
        ) as consumer:
            await read(consumer, 4)
            reader = asyncio.create_task(read(consumer, 1))
            with lakemq.connect(node.native) as other:
                await until(lambda: not other.describe_group(topic).lag)
            reader.cancel()


async def test_two_members_share_and_the_callbacks_tell(node: NodeProcess) -> None:
    told: list[tuple[str, frozenset[lakemq.TopicPartition]]] = []
    async with filled(node, 100) as (client, topic):
        handled: list[int] = []

        async def member(name: str) -> None:
            async def revoked(places: frozenset[lakemq.TopicPartition]) -> None:
                await consumer.commit()
                told.append((name + "-", places))

            async with client.subscribe(
                topic,
                group=topic,
                on_assigned=lambda places: told.append((name + "+", places)),
                on_revoked=revoked,
            ) as consumer:
                async for record in consumer:
                    handled.append(int(record.value or b""))

        first = asyncio.create_task(member("a"))
        await until(lambda: len(handled) == 100)
        second = asyncio.create_task(member("b"))
        await until(lambda: any(name == "b+" for name, _ in told))
        await fill(client, topic, range(100, 200))
        await until(lambda: len(handled) >= 200)
        assert sorted(handled) == list(range(200)), "the commit in the callback holds"
        assert [(name, len(places)) for name, places in told] == [("a+", 4), ("a-", 2), ("b+", 2)]
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


async def test_a_commit_that_comes_after_the_session_is_refused(node: NodeProcess) -> None:
    lost: list[frozenset[lakemq.TopicPartition]] = []
    async with filled(node, 40) as (client, topic):
        async with client.subscribe(
            topic, group=topic, session_timeout_ms=1000, on_lost=lost.append
        ) as sleeper:
            await read(sleeper, 10)
            sleeper._stream._driver.cancel()  # type: ignore[union-attr]  # a frozen process
            async with client.subscribe(topic, group=topic) as heir:
                assert sorted(await read(heir, 40)) == list(range(40))
                with pytest.raises((lakemq.MemberFenced, lakemq.UnknownMember)):
                    await sleeper.commit()
                await heir.commit()
        assert (await client.describe_group(topic)).lag == 0


async def test_a_static_member_restarts_without_a_rebalance(node: NodeProcess) -> None:
    async with filled(node, 40) as (client, topic):
        one = client.subscribe(topic, group=topic, instance_id="one")
        async with one:
            await read(one, 1)
            async with client.subscribe(topic, group=topic, instance_id="two") as two:
                readers = [asyncio.create_task(read(each, 1000)) for each in (one, two)]
                await until(lambda: len(one.assignment) == len(two.assignment) == 2)
                had = two.assignment
                readers[1].cancel()
            epoch = (await client.describe_group(topic)).epoch
            async with client.subscribe(topic, group=topic, instance_id="two") as two:
                reader = asyncio.create_task(read(two, 1000))
                await until(lambda: bool(two.assignment))
                assert two.assignment == had
                assert (await client.describe_group(topic)).epoch == epoch
                reader.cancel()
            readers[0].cancel()


def test_the_blocking_face(node: NodeProcess) -> None:
    topic = unique("groups")
    with lakemq.connect(node.native) as client:
        client.create_topic(topic, partitions=2)
        client.send_batch(topic, [lakemq.NewRecord(b"%d" % n, key=b"%d" % n) for n in range(50)])
        with client.subscribe(topic, group=topic) as consumer:
            first = [record.value for record in itertools.islice(consumer, 20)]
            consumer.commit()
            assert len(consumer.assignment) == 2
        with client.subscribe(topic, group=topic) as consumer:
            rest = [record.value for record in itertools.islice(consumer, 30)]
        assert {*first, *rest} == {b"%d" % n for n in range(50)}
        assert client.describe_group(topic).lag == 30
        client.delete_group(topic)
        with pytest.raises(lakemq.UnknownGroup, match=topic):
            client.describe_group(topic)


def test_wrong_requests_are_refused(node: NodeProcess) -> None:
    topic = unique("groups")
    with lakemq.connect(node.native) as client:
        client.create_topic(topic)
        place = lakemq.TopicPartition(topic, 0)
        with pytest.raises(lakemq.InvalidRequest, match="group"):
            client.reset_offsets("", {place: 0})
        with pytest.raises(lakemq.UnknownPartition):
            client.reset_offsets("g", {lakemq.TopicPartition(topic, 99): 0})
        client.reset_offsets("g", {place: 0})
        for refused in (
            lambda: client.send("_lakemq_offsets", b"x"),
            lambda: client.delete_topic("_lakemq_offsets"),
        ):
            with pytest.raises(lakemq.NotAuthorized, match="is internal; only operators"):
                refused()
        with (
            client.subscribe(topic, group="g", session_timeout_ms=1) as consumer,
            pytest.raises(lakemq.InvalidRequest, match="session_timeout_ms"),
        ):
            next(iter(consumer))
        with client.subscribe(topic, group="g") as consumer:
            reader = iter(consumer)
            client.send(topic, b"x")
            next(reader)
            with pytest.raises(lakemq.GroupNotEmpty):
                client.reset_offsets("g", {place: 0})
            with pytest.raises(lakemq.GroupNotEmpty):
                client.delete_group("g")


def group_command(*arguments: str) -> str:
    return CliRunner().invoke(group, arguments).output


def test_the_command_line(node: NodeProcess) -> None:
    topic = unique("groups")
    with lakemq.connect(node.native) as client:
        client.create_topic(topic, partitions=1)
        client.send_batch(topic, [lakemq.NewRecord(b"x", timestamp_ms=n) for n in range(50)])
        client.reset_offsets("nightly", {lakemq.TopicPartition(topic, 0): 20})
    at = ("--bootstrap", node.native)
    assert "nightly" in group_command("list", *at)
    shown = group_command("describe", "nightly", *at).splitlines()
    assert shown[0].startswith("nightly  empty, epoch 0") and shown[2].split() == [
        topic,
        "0",
        "20",
        "50",
        "30",
    ]
    for to, offset in (("earliest", 0), ("latest", 50), ("7", 7), ("time:33", 33)):
        said = group_command("reset-offsets", "nightly", "-t", topic, "--to", to, *at)
        assert said == f"nightly: {topic}-0 committed offset is {offset}\n"
    assert "--to is 'x'" in group_command("reset-offsets", "nightly", "-t", topic, "--to", "x", *at)
    assert group_command("delete", "nightly", "--yes", *at) == "deleted group nightly\n"
    assert "does not exist" in group_command("describe", "nightly", *at)


MEMBER = """
import asyncio, sys, lakemq

async def main(address, topic):
    async with lakemq.Client(address, timeout_s=20) as client:
        async with client.subscribe(topic, group="workers", session_timeout_ms=1500) as consumer:
            async for record in consumer:
                print("handled", record.partition, record.offset, flush=True)
                try:
                    await consumer.commit()
                except (lakemq.MemberFenced, lakemq.UnknownMember):
                    continue
                print("committed", record.partition, record.offset, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Worker:
    """A consumer in a process of its own that says what it handled and committed, in order."""

    def __init__(self, node: NodeProcess, topic: str, log: Path) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MEMBER, node.native, topic], stdout=out, cwd=ROOT
            )

    def said(self) -> list[tuple[str, int, int]]:
        lines = self.log.read_text().splitlines(keepends=True)
        rows = [line.split() for line in lines if line.endswith("\n")]
        return [(kind, int(partition), int(offset)) for kind, partition, offset in rows]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@pytest.mark.fault
async def test_members_are_killed_and_frozen_and_the_broker_is_killed(tmp_path: Path) -> None:
    """No record that one worker committed is handled by another afterwards; none is missing."""
    node = NodeProcess(tmp_path, ports_kept("native")).start()
    workers: list[Worker] = []
    count = 1500

    def start() -> Worker:
        workers.append(Worker(node, "jobs", tmp_path / f"worker-{len(workers)}.log"))
        return workers[-1]

    try:
        async with lakemq.Client(node.native, timeout_s=20) as client:
            await client.create_topic("jobs", partitions=4)
            first, second, third = start(), start(), start()
            feeder = asyncio.create_task(feed(client, count))
            await until_committed(workers, 200)
            first.kill()
            await until_committed(workers, 400)
            second.process.send_signal(signal.SIGSTOP)
            start()
            await asyncio.sleep(2)  # longer than its session
            second.process.send_signal(signal.SIGCONT)
            await until_committed(workers, 600)
            await asyncio.to_thread(node.kill)
            committed_before = committed(workers)
            await asyncio.to_thread(node.start)
            third.kill()
            start()
            await feeder
            await until_committed(workers, count)
            # A worker writes its log before its commit has reached the broker.
            deadline = time.monotonic() + 60
            while lag := (await client.describe_group("workers")).lag:
                assert time.monotonic() < deadline, f"{lag} records are not committed"
                await asyncio.sleep(0.05)
            assert len(committed_before) >= 590
    finally:
        for worker in workers:
            worker.kill()
        node.kill()
    owner: dict[tuple[int, int], int] = {}
    for number, worker in enumerate(workers):
        for kind, partition, offset in worker.said():
            if kind == "committed":
                assert owner.setdefault((partition, offset), number) == number, (
                    f"record {partition}-{offset} was committed by two workers"
                )
    assert len(owner) >= count - len(workers)


async def feed(client: lakemq.Client, count: int) -> None:
    async with await client.producer() as producer:
        for start in range(0, count, 20):
            for number in range(start, start + 20):
                await producer.enqueue("jobs", lakemq.NewRecord(b"%d" % number, key=b"%d" % number))
            await asyncio.sleep(0.02)


def committed(workers: list[Worker]) -> set[tuple[int, int]]:
    return {
        (partition, offset)
        for worker in workers
        for kind, partition, offset in worker.said()
        if kind == "committed"
    }


async def until_committed(workers: list[Worker], count: int) -> None:
    """A worker that is killed between the commit and its word may hide one record each."""
    await until(lambda: len(committed(workers)) >= count - len(workers), 60)
