"""Schemas through a running member: in process, and over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakemq.meta_service.api.errors import CompareFailed, InvalidArgument, NotFound
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.schemas import Schema, SubjectChange
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import MetaClient
from lakemq.meta_service.server import service
from lakemq.meta_service.server.member import MetaMember


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


async def test_schemas_are_registered_and_found(client: MetaClient) -> None:
    one = await client.register_schema("t-value", "avro", '"int"', expected_version=0)
    assert one == Schema("t-value", 1, 1, "avro", '"int"')
    with pytest.raises(CompareFailed, match="is at version 1, expected was 0"):
        await client.register_schema("t-value", "avro", '"long"', expected_version=0)
    two = await client.register_schema("t-value", "avro", '"long"', expected_version=1)
    assert await client.schema(1) == one
    assert await client.schema(99) is None
    assert await client.schema_version("t-value") == two
    assert await client.schema_version("t-value", 1) == one
    assert await client.schema_version("t-value", 3) is None
    assert await client.schema_version("none") is None
    await client.delete_schema("t-value", 1)
    assert await client.schema(1) is None
    subject = await client.subject("t-value")
    assert subject is not None and subject.versions == ((2, 2),)
    await client.delete_schema("t-value")
    with pytest.raises(NotFound):
        await client.delete_schema("t-value")


async def test_compatibility_has_a_default(client: MetaClient) -> None:
    assert await client.default_compatibility() == "backward"
    await client.set_compatibility("", "full")
    assert await client.default_compatibility() == "full"
    await client.set_compatibility("s", "none")
    found = await client.subject("s")
    assert found is not None and (found.compatibility, found.latest_version) == ("none", 0)
    with pytest.raises(InvalidArgument, match="compatibility"):
        await client.set_compatibility("s", "perhaps")


async def test_subjects_are_listed_and_watched(
    client: MetaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ANSWER_MAX_BYTES", 200)
    for number in range(8):
        await client.register_schema(f"s{number}", "json-schema", "{}")
    revision, subjects = await client.subjects()
    assert [subject.name for subject in subjects] == [f"s{number}" for number in range(8)]
    seen: list[SubjectChange] = []

    async def follow() -> None:
        async for change in client.watch_subjects(revision + 1):
            seen.append(change)
            if change.subject is None:
                return

    task = asyncio.create_task(follow())
    await client.put(b"other", b"")
    await client.register_schema("s3", "json-schema", "true")
    await client.delete_schema("s4")
    await asyncio.wait_for(task, 60)
    assert [(c.name, c.subject.versions if c.subject else None) for c in seen] == [
        ("s3", ((1, 4), (2, 9))),
        ("s4", None),
    ]
