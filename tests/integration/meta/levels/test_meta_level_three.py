"""Goal: data of feature level 3 is read for ever, and moves to pages when the level rises.

`tests/data/meta/level-3` was written by a member of level 3: nodes n1 and n2, and n3 that had left;
a topic of one replica each, and one of 40 partitions with three, of which some were not in sync.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import PartitionDescription
from lakemq.meta_service.server.member import MetaMember

DATA = Path(__file__).parents[3] / "data" / "meta" / "level-3"


@pytest.fixture(params=[True, False], ids=["store", "log alone"])
async def member(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MetaMember]:
    """`log alone`: every command is applied once more, by the rules of its level."""
    folder = tmp_path / "meta"
    shutil.copytree(DATA, folder)
    if not request.param:
        shutil.rmtree(folder / "store")
    member = MetaMember(MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=folder)
    await member.start()
    yield member
    await member.stop()


async def partitions(member: MetaMember, name: str) -> tuple[PartitionDescription, ...]:
    _, topics = await member.client().topics()
    return next(topic.partitions for topic in topics if topic.name == name)


async def test_partitions_are_what_they_were(member: MetaMember) -> None:
    client = member.client()
    assert int((await client.status()).detail["feature_level"]) == 4
    states = {node.node_id: (node.state, node.admitted) for node in await client.nodes()}
    assert states == {"n1": ("active", True), "n2": ("active", True), "n3": ("fenced", True)}
    single = await partitions(member, "single")
    assert [(p.leader, p.leader_epoch, p.in_sync) for p in single] == [
        ("n1", 0, ("n1",)), ("n2", 0, ("n2",)),
    ]  # fmt: skip
    many = await partitions(member, "replicated")
    assert len(many) == 40
    assert many[0] == PartitionDescription(0, "n1", 0, 1, ("n1", "n2", "n3"), ("n1",))
    assert (many[2].leader, many[2].leader_epoch, many[2].in_sync) == ("n1", 1, ("n1", "n2"))
    assert all(p.leader != "n3" and "n3" not in p.in_sync for p in many)
    found = await client.get(b"key")
    assert found is not None and found.value == b"value"


async def test_a_node_of_then_registers_now(member: MetaMember) -> None:
    """Its leaderships end, and come back in new epochs where no other took them over."""
    control = member.control()
    (old, *_) = await control.nodes()
    node = await control.register_node(replace(old, roles=("broker",)))
    beats = control.heartbeats("n1", node.broker_epoch, period_s=0.05)
    async with asyncio.timeout(30):
        async for state, _ in beats:
            if state == "active":
                break
    await beats.aclose()
    first, _ = await partitions(member, "single")
    assert (first.leader, first.leader_epoch, first.in_sync) == ("n1", 2, ("n1",))
    many = await partitions(member, "replicated")
    assert (many[0].leader, many[0].in_sync) == ("n2", ("n2",)), "the topic asks for unclean ones"
    assert many[2].leader == "n2" and many[2].leader_epoch == 2
