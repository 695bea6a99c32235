"""The controller of running members: heartbeats, fencing, draining."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lakemq.meta_service.api.errors import CompareFailed, NotFound
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import (
    InSyncAnswer,
    InSyncChange,
    NodeRegistration,
    TopicDescription,
)
from lakemq.meta_service.server.member import MetaMember


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[MetaMember]:
    member = MetaMember(
        MetaSettings(port=0), node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta"
    )
    await member.start()
    yield member
    await member.stop()


@pytest.fixture(params=["here", "remote"])
async def client(member: MetaMember, request: pytest.FixtureRequest) -> AsyncIterator[RemoteClient]:
    if request.param == "here":
        yield member.control()
        return
    remote = RemoteClient([member.addresses()["meta"]])
    yield remote
    await remote.close()


class Broker:
    """A node that registers and beats until it is stopped."""

    def __init__(self, client: RemoteClient, name: str) -> None:
        self._client, self._name = client, name
        self.states: list[str] = []

    async def start(self) -> None:
        registration = NodeRegistration(self._name, {}, heartbeats=True)
        self.epoch = (await self._client.register_node(registration)).broker_epoch
        self._task = asyncio.create_task(self._beat())
        await until(lambda: "active" in self.states)

    async def _beat(self) -> None:
        beats = self._client.heartbeats(self._name, self.epoch, period_s=0.1)
        async for state, _ in beats:
            self.states.append(state)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> float:
    """How long it took (s)."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + seconds, "it did not come true in time"
        await asyncio.sleep(0.02)
    return time.monotonic() - begin


async def topic_of(client: RemoteClient, name: str) -> TopicDescription:
    return next(topic for topic in (await client.topics())[1] if topic.name == name)


async def test_a_dead_node_is_fenced(client: RemoteClient) -> None:
    brokers = [Broker(client, name) for name in ("a", "b")]
    for broker in brokers:
        await broker.start()
    await client.create_topic("t", 4, {})
    before = await topic_of(client, "t")
    assert {p.leader for p in before.partitions} == {"a", "b"}
    await brokers[0].stop()
    begin = time.monotonic()
    states: dict[str, str] = {}
    while states.get("a") != "fenced":
        assert time.monotonic() < begin + 30
        states = {node.node_id: node.state for node in await client.nodes()}
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)  # a few steps of the controller
    after = await topic_of(client, "t")
    assert after.partitions == before.partitions, "one replica each: nobody else has what `a` has"
    await brokers[1].stop()


async def test_a_node_that_leaves_is_fenced_at_once(client: RemoteClient) -> None:
    broker = Broker(client, "a")
    await broker.start()
    await broker.stop()
    await client.leave("a", broker.epoch)
    (node,) = await client.nodes()
    assert node.state == "fenced"
    with pytest.raises(NotFound):
        await client.leave("b", broker.epoch)


async def test_a_node_that_comes_back_leads_again_with_a_new_epoch(client: RemoteClient) -> None:
    broker = Broker(client, "a")
    await broker.start()
    await client.create_topic("t", 1, {})
    old = (await topic_of(client, "t")).partitions[0]
    await broker.stop()
    again = Broker(client, "a")
    await again.start()
    async with asyncio.timeout(60):
        while True:
            new = (await topic_of(client, "t")).partitions[0]
            if new.leader == "a":
                break
            await asyncio.sleep(0.02)
    assert again.epoch > broker.epoch
    assert new.leader_epoch > old.leader_epoch or new.partition_epoch == old.partition_epoch
    await again.stop()


async def test_a_heartbeat_of_an_old_incarnation_is_told_so(client: RemoteClient) -> None:
    registration = NodeRegistration("a", {}, heartbeats=True)
    old = await client.register_node(registration)
    await client.register_node(registration)
    with pytest.raises(CompareFailed, match="registered again"):
        await anext(client.heartbeats("a", old.broker_epoch))


async def test_a_drained_node_is_told_and_takes_no_new_partitions(client: RemoteClient) -> None:
    brokers = [Broker(client, name) for name in ("a", "b")]
    for broker in brokers:
        await broker.start()
    await client.drain_node("a")
    await until(lambda: brokers[0].states[-1] == "draining")
    await client.create_topic("t", 4, {})
    assert {p.leader for p in (await topic_of(client, "t")).partitions} == {"b"}
    for broker in brokers:
        await broker.stop()


async def test_the_in_sync_set_changes_by_compare_and_set(client: RemoteClient) -> None:
    await client.register_node(NodeRegistration("a", {}))
    topic = await client.create_topic("t", 1, {})

    (node,) = await client.nodes()

    async def change(partition_epoch: int) -> InSyncAnswer:
        wish = InSyncChange(topic.topic_id, 0, 0, partition_epoch, {"a": node.broker_epoch})
        (answer,) = await client.change_in_sync("a", node.broker_epoch, [wish])
        return answer

    assert await change(0) == InSyncAnswer("DONE", 1, ("a",), "a", 0)
    assert await change(0) == InSyncAnswer("STALE", 1, ("a",), "a", 0)
