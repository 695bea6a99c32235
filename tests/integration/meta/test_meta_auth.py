"""Users, rules and quotas through a running member: in process, and over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakemq.meta_service.api.auth import (
    AclRule,
    AuthChange,
    AuthCopy,
    Quota,
    ScramCredential,
    User,
)
from lakemq.meta_service.api.errors import CompareFailed, InvalidArgument, NotFound
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient
from lakemq.meta_service.catalog import apply as apply_module
from lakemq.meta_service.server import service
from lakemq.meta_service.server.member import MetaMember

SCRAM = ScramCredential("SCRAM-SHA-512", b"s" * 16, 8192, b"k" * 64, b"v" * 64)
USER = User("ann", ("ops",), {"team": "a"}, scram=(SCRAM,))
RULE = AclRule("r1", "user:ann", "deny", "*", "topic", "secret-", "prefixed", retain=True)


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[MetaMember]:
    settings = MetaSettings(port=0)
    member = MetaMember(settings, node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta")
    await member.start()
    yield member
    await member.stop()


@pytest.fixture(params=["local", "routed", "remote"])
async def client(member: MetaMember, request: pytest.FixtureRequest) -> AsyncIterator[MetaClient]:
    if request.param != "remote":
        yield member.client() if request.param == "local" else member.control()
        return
    remote = RemoteClient([member.addresses()["meta"]])
    yield remote
    await remote.close()


async def test_entries_are_put_found_and_deleted(client: MetaClient) -> None:
    revision = await client.put_user(USER, expected_revision=0)
    assert await client.user("ann") == replace(USER, revision=revision)
    assert await client.user("an") is None
    with pytest.raises(CompareFailed, match=f"revision {revision}, expected was 0"):
        await client.put_user(USER, expected_revision=0)
    disabled = replace(USER, disabled=True)
    assert await client.put_user(disabled, expected_revision=revision) == revision + 1
    with pytest.raises(InvalidArgument, match="'topc'; did you mean 'topic'"):
        await client.put_rule(replace(RULE, resource="topc"))
    await client.put_rule(RULE)
    await client.put_quota(Quota("role:ops", connections=0))
    assert [user.disabled for user in await client.users()] == [True]
    assert await client.rules() == [replace(RULE, revision=revision + 2)]
    assert (await client.quotas())[0].connections == 0
    await client.delete_rule("r1")
    with pytest.raises(NotFound, match="ACL rule 'r1' does not exist"):
        await client.delete_rule("r1")
    with pytest.raises(InvalidArgument, match="user.password_hash"):
        await client.put_user(User("bob", password_hash="plain"))


async def test_a_copy_follows_without_asking(client: MetaClient) -> None:
    await client.put_user(USER)
    copy, seen = AuthCopy(), asyncio.Queue[AuthChange | None]()

    async def follow() -> None:
        async for change in client.follow_auth(copy):
            seen.put_nowait(change)

    task = asyncio.create_task(follow())
    assert await asyncio.wait_for(seen.get(), 60) is None
    assert list(copy.users) == ["ann"]
    await client.put(b"other", b"x")
    await client.put_rule(RULE)
    await client.delete_user("ann")
    changes = [await asyncio.wait_for(seen.get(), 60) for _ in range(2)]
    assert [(c.kind, c.name, c.entry is None) for c in changes if c] == [
        ("rule", "r1", False),
        ("user", "ann", True),
    ]
    assert (list(copy.users), list(copy.rules)) == ([], ["r1"])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_copy_too_far_behind_is_loaded_anew(
    client: MetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_module, "HISTORY_REVISIONS_MAX", 3)
    copy = AuthCopy()
    follower = client.follow_auth(copy)
    assert await asyncio.wait_for(anext(follower), 60) is None
    for number in range(10):
        await client.put_user(User(f"u{number}"))
    # The history holds three revisions, the watch begins at the first: it must start over.
    while len(copy.users) < 10:
        await asyncio.wait_for(anext(follower), 60)
    assert sorted(copy.users) == [f"u{number}" for number in range(10)]
    await follower.aclose()  # type: ignore[attr-defined] # it is an async generator


async def test_lists_larger_than_one_answer_are_whole(
    client: MetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ANSWER_MAX_BYTES", 300)
    for number in range(12):
        await client.put_user(User(f"u{number:02}"))
    await client.put_rule(RULE)
    snapshot = await client.auth()
    assert [user.name for user in snapshot.users] == [f"u{number:02}" for number in range(12)]
    assert len(snapshot.rules) == 1


async def test_entries_survive_a_restart(tmp_path: Path) -> None:
    for turn in range(2):
        settings = MetaSettings(port=0)
        member = MetaMember(settings, node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta")
        await member.start()
        if turn == 0:
            await member.client().put_user(USER)
        assert [user.name for user in await member.client().users()] == ["ann"]
        await member.stop()
