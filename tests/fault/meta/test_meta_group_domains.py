"""A group of real members: feature levels that wait for all, copies that follow through a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakemq.meta_service.api.auth import AuthChange, AuthCopy, User
from lakemq.meta_service.api.errors import UnsupportedCommand
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import PartitionsChange, TopicChange
from lakemq.meta_service.catalog.command_codec import FEATURE_LEVEL
from tests.support.meta.group import Group

pytestmark = pytest.mark.fault


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    yield group
    group.stop()


async def put_when_allowed(client: RemoteClient, name: str) -> None:
    """As soon as every member has told that it knows the command."""
    async with asyncio.timeout(60):
        while True:
            try:
                await client.put_user(User(name))
                return
            except UnsupportedCommand:
                await asyncio.sleep(0.05)


async def came(
    changes: list[AuthChange], topics: list[TopicChange | PartitionsChange], count: int
) -> None:
    deadline = time.monotonic() + 60
    while min(len(changes), len(topics)) < count:
        assert time.monotonic() < deadline, (len(changes), len(topics))
        await asyncio.sleep(0.05)


async def test_new_commands_wait_until_every_member_knows_them(group: Group) -> None:
    for name in ("n1", "n2"):
        group.start(name)
    for name in ("n1", "n2"):
        group.wait_ready(name)
    client = group.client()
    await client.put(b"a", b"1")
    await asyncio.sleep(0.5)
    with pytest.raises(UnsupportedCommand, match="needs feature level 2, the cluster is at 1"):
        await client.put_user(User("early"))
    group.start("n3")
    group.wait_ready("n3")
    await put_when_allowed(client, "late")
    assert [user.name for user in await client.users()] == ["late"]
    status = await client.status()
    assert int(status.detail["feature_level"]) == FEATURE_LEVEL
    await client.close()


async def test_copies_and_watches_go_on_through_the_death_of_leaders(group: Group) -> None:
    group.start_all()
    client, other = group.client(timeout_s=60), group.client(timeout_s=60)
    await put_when_allowed(client, "first")
    copy, changes = AuthCopy(), list[AuthChange]()
    topics = list[TopicChange | PartitionsChange]()
    loaded = asyncio.Event()

    async def follow() -> None:
        async for change in other.follow_auth(copy):
            loaded.set()
            if change is not None:
                changes.append(change)

    async def follow_topics() -> None:
        async for topic in other.watch_partitions(1):
            topics.append(topic)

    tasks = [asyncio.create_task(follow()), asyncio.create_task(follow_topics())]
    await asyncio.wait_for(loaded.wait(), 60)
    for turn in range(2):
        for number in range(20):
            await client.put_user(User(f"u{turn}-{number:02}"))
            await client.create_topic(f"t{turn}-{number:02}", 1, {})
            if number == 10:
                leader = await group.leader()
                group.kill(leader)
        group.start(leader)
        group.wait_ready(leader)
    expected = [f"{turn}-{number:02}" for turn in range(2) for number in range(20)]
    await came(changes, topics, 40)
    assert [change.name for change in changes] == [f"u{name}" for name in expected]
    assert [topic.name for topic in topics] == [f"t{name}" for name in expected]
    assert sorted(copy.users) == ["first", *[f"u{name}" for name in expected]]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()
    await other.close()
