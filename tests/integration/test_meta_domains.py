"""MQTT sessions and tiered manifests through a running member: in process, and over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from meta_service.api.client import RemoteClient
from meta_service.api.errors import CompareFailed, InvalidArgument, NotFound
from meta_service.api.journal import Manifest, PartitionLeader, TieredSegment
from meta_service.api.mqtt import Claim, MqttChange, SharedGroup
from meta_service.api.settings import MetaSettings
from meta_service.api.types import MetaClient, NodeRegistration
from meta_service.server import mqtt_service
from meta_service.server.member import MetaMember


@pytest.fixture(params=["local", "routed", "remote"])
async def client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MetaClient]:
    settings = MetaSettings(port=0)
    member = MetaMember(settings, node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta")
    await member.start()
    remote = RemoteClient([member.addresses()["meta"]])
    ways = {"local": member.client(), "routed": member.control(), "remote": remote}
    yield ways[request.param]
    await remote.close()
    await member.stop()


async def true(condition: Callable[[], Awaitable[bool]]) -> None:
    begin = time.monotonic()
    while not await condition():
        assert time.monotonic() < begin + 60, "it did not come true in time"
        await asyncio.sleep(0.05)


async def test_a_session_moves_from_node_to_node(client: MetaClient) -> None:
    seen: list[MqttChange] = []

    async def follow() -> None:
        async for change in client.watch_mqtt(1):
            seen.append(change)
            if change.client_id and change.session is None:
                return

    task = asyncio.create_task(follow())
    first = await client.claim_session("dev", "n1", clean_start=False, expiry_s=60)
    assert first == Claim(first.epoch, None, False, b"")
    await client.save_session("dev", first.epoch, b"subscriptions")
    second = await client.claim_session("dev", "n2", clean_start=False, expiry_s=60)
    assert second == Claim(second.epoch, "n1", True, b"subscriptions")
    with pytest.raises(CompareFailed, match="served by n2"):
        await client.save_session("dev", first.epoch, b"late")
    await client.release_session("dev", second.epoch)
    found = await client.session("dev")
    assert found is not None and not found.connected
    assert abs(found.ends_ms - time.time_ns() // 1_000_000 - 60_000) < 10_000
    await client.end_session("dev")
    assert await client.session("dev") is None
    with pytest.raises(NotFound):
        await client.end_session("dev")
    await asyncio.wait_for(task, 60)
    nodes = [change.session.node_id if change.session else None for change in seen]
    assert nodes == ["n1", "n1", "n2", "n2", None]


async def test_sessions_end_by_themselves_and_long_lists_are_whole(
    client: MetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt_service, "ANSWER_BYTES_MAX", 400)
    for number in range(6):
        claim = await client.claim_session(f"d{number}", "n1", clean_start=True, expiry_s=1)
        if number % 2:
            await client.release_session(f"d{number}", claim.epoch)

    async def are_three() -> bool:
        names = [session.client_id for session in (await client.sessions())[1]]
        assert {"d0", "d2", "d4"} <= set(names)
        return names == ["d0", "d2", "d4"]

    assert len((await client.sessions())[1]) == 6
    await true(are_three)


async def test_shared_groups_know_their_members(client: MetaClient) -> None:
    await client.join_shared("g", "a/+", "c1", "n1")
    group = await client.join_shared("g", "a/+", "c2", "n2")
    members = (("c1", "n1"), ("c2", "n2"))
    assert group == SharedGroup("g", "a/+", group.epoch, "n1", members)
    await client.leave_shared("g", "a/+", "c1")
    (left,) = (await client.shared_groups())[1]
    assert (left.coordinator, left.members) == ("n2", (("c2", "n2"),))
    with pytest.raises(InvalidArgument, match="group"):
        await client.join_shared("g#", "a", "c", "n")


async def test_manifests_live_and_die_with_their_topic(client: MetaClient) -> None:
    await client.register_node(NodeRegistration("n1", {}))
    topic = await client.create_topic("t", 1, {})
    who = PartitionLeader("t", topic.topic_id, 0, "n1", 0)
    assert await client.manifest(topic.topic_id, 0) == Manifest(0, 0, 0, 0, ())
    segments = [TieredSegment(n, n + 1, 10, f"t/{n}", b"sum", -5) for n in range(5)]
    for segment in segments:
        await client.begin_upload(who, segment.location)
    assert await client.uploads(topic.topic_id, 0) == [each.location for each in segments]
    revision = await client.change_manifest(who, put=segments[:4], expected_revision=0)
    part = await client.manifest(topic.topic_id, 0, after=0, limit=2)
    assert part == Manifest(revision, 0, 4, 40, tuple(segments[1:3]), True)
    assert await client.uploads(topic.topic_id, 0) == ["t/4"]
    with pytest.raises(InvalidArgument, match="go on at offset 4"):
        await client.change_manifest(who, put=[TieredSegment(9, 10, 1, "t/4", b"")])
    await client.change_manifest(who, remove=[0], start_offset=1, abandon=["t/4"])
    assert await client.garbage() == ["t/0", "t/4"]
    await client.drop_garbage(["t/0", "t/4"])
    await client.delete_topic("t")

    async def is_collected() -> bool:
        return await client.garbage() == ["t/1", "t/2", "t/3"]

    await true(is_collected)
    assert (await client.manifest(topic.topic_id, 0)).revision == 0
