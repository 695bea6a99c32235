"""Goal: what the broker has taken appears, also when its topic's `batch_max_bytes` was lowered
since: commits, delayed records, dead letters, and the broker's own records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

import lakemq
from tests.support.node.node import PORTS_FREE, NodeProcess, unique

LARGE = b"x" * 50_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Topics that nobody configures, the broker's own too, take 1 KiB."""
    config = PORTS_FREE + "[topics]\nbatch_max_bytes = 1024\n"
    with NodeProcess(tmp_path_factory.mktemp("lowered"), config) as node:
        yield node


@pytest.fixture
def topic(client: lakemq.SyncClient) -> str:
    """One that takes large records until it is told not to."""
    name = unique("lowered")
    client.create_topic(name, config={"batch_max_bytes": "1000000"})
    return name


def lower(client: lakemq.SyncClient, topic: str) -> None:
    client.admin.alter_topic(topic, {"batch_max_bytes": "1024"})
    with pytest.raises(lakemq.BatchTooLarge):
        client.send(topic, LARGE)


def values(client: lakemq.SyncClient, topic: str) -> list[bytes | None]:
    return [record.value for record in client.consume(topic)]


def test_a_commit_is_applied(client: lakemq.SyncClient, topic: str) -> None:
    session = client.staging.open_sink(topic)
    with client.staging.writer(session, 0, 0) as writer:
        writer.send_batch(topic, lakemq.Columns([LARGE]))
        winner = writer.finish()
    lower(client, topic)
    assert client.staging.commit(session, 0, [winner]).applied
    assert values(client, topic) == [LARGE]
    client.send(topic, b"small")
    assert values(client, topic) == [LARGE, b"small"]


async def test_a_delayed_record_comes(node: NodeProcess, topic: str) -> None:
    with lakemq.connect(node.native, timeout_s=10) as client:
        client.schedules.send(topic, LARGE, delay=timedelta(seconds=1))
        lower(client, topic)
    async with lakemq.Client(node.native) as watching, asyncio.timeout(60):
        async for record in watching.consume(topic, follow=True):
            assert record.value == LARGE
            break


async def test_a_dead_letter_is_buried_where_only_small_ones_are_taken(
    node: NodeProcess, topic: str
) -> None:
    async with lakemq.Client(node.native, timeout_s=10) as client, asyncio.timeout(60):
        async with await client.producer() as producer:
            for value in (LARGE, b"small"):
                await producer.send(topic, value)
        options = lakemq.QueueOptions(dead_letter=f"{topic}-dead")
        async with client.queue(topic, group="g" * 200, **options) as queue:
            for _ in range(2):
                await (await anext(queue)).reject()
        async for record in client.consume(f"{topic}-dead", follow=True):
            if record.value == b"small":
                break
            assert record.value == LARGE


async def test_large_commits_of_offsets_are_kept(node: NodeProcess, topic: str) -> None:
    """One record of the broker's own topic is larger than what that takes from producers."""
    async with lakemq.Client(node.native, timeout_s=10) as client:
        await client.admin.add_partitions(topic, 40)
        offsets = {lakemq.TopicPartition(topic, number): 0 for number in range(40)}
        await client.reset_offsets("wide", offsets)
        assert len((await client.describe_group("wide")).offsets) == 40
