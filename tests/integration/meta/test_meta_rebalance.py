"""Replicas that move from broker to broker: the controller, the catalog, the command."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lakemq.cli.meta_commands import meta
from lakemq.meta_service.api.errors import CompareFailed, NotFound
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.settings import MetaSettings
from lakemq.meta_service.api.types import NodeRegistration, Rebalance, TopicDescription
from lakemq.meta_service.control import mover
from lakemq.meta_service.server.member import MetaMember


@pytest.fixture
async def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MetaMember]:
    monkeypatch.setattr(mover, "PLAN_S", 0.05)
    settings = MetaSettings(port=0)
    member = MetaMember(settings, node_id="n1", host="127.0.0.1", data_dir=tmp_path / "meta")
    await member.start()
    yield member
    await member.stop()


@pytest.fixture
async def client(member: MetaMember) -> AsyncIterator[RemoteClient]:
    client = RemoteClient([member.addresses()["meta"]])
    yield client
    await client.close()


async def command(member: MetaMember, *arguments: str) -> Result:
    arguments = (*arguments, "-a", member.addresses()["meta"])
    return await asyncio.to_thread(CliRunner().invoke, meta, list(arguments))


async def catch_up(client: RemoteClient) -> None:
    """What the brokers do: every replica of every partition gets in sync, for ever."""
    while True:
        for topic in (await client.topics())[1]:
            for partition in topic.partitions:
                if partition.leader and set(partition.replicas) != set(partition.in_sync):
                    with contextlib.suppress(CompareFailed):  # the controller was quicker
                        await client.change_in_sync(
                            topic.name,
                            topic.topic_id,
                            partition.partition,
                            leader=partition.leader,
                            leader_epoch=partition.leader_epoch,
                            partition_epoch=partition.partition_epoch,
                            in_sync=partition.replicas,
                        )
        await asyncio.sleep(0.02)


async def until(client: RemoteClient, condition: Callable[[TopicDescription], bool]) -> None:
    async def holds() -> bool:
        return condition((await client.topics())[1][0])

    await true(holds)


async def true(condition: Callable[[], Awaitable[bool]]) -> None:
    begin = time.monotonic()
    while not await condition():
        assert time.monotonic() < begin + 60, "it did not come true in time"
        await asyncio.sleep(0.05)


def held(topic: TopicDescription, node: str) -> int:
    return sum(node in partition.replicas for partition in topic.partitions)


async def test_a_new_broker_gets_its_share(member: MetaMember, client: RemoteClient) -> None:
    for name in ("a", "b"):
        await client.register_node(NodeRegistration(name, {}))
    await client.create_topic("t", 6, {}, replication=2)
    await client.register_node(NodeRegistration("c", {}))
    before = (await client.topics())[1]

    shown = await command(member, "rebalance", "--plan", "--at-once", "2")
    assert shown.exit_code == 0, shown.output
    assert "4 replicas to copy; 0 in progress; no rebalance running" in shown.output
    assert (await client.topics())[1] == before, "a plan changes nothing"

    started = await command(member, "rebalance", "--at-once", "2")
    assert "; rebalance running" in started.output
    await until(client, lambda topic: any(p.target for p in topic.partitions))
    await asyncio.sleep(0.3)
    topic = (await client.topics())[1][0]
    assert sum(bool(p.target) for p in topic.partitions) == 2, "no more than two at a time"
    assert all(set(p.in_sync) == {"a", "b"} for p in topic.partitions)

    brokers = asyncio.create_task(catch_up(client))
    await until(client, lambda topic: [held(topic, n) for n in "abc"] == [4, 4, 4])

    async def is_over() -> bool:
        return await client.rebalance() == Rebalance((), 0, False)

    await true(is_over)
    brokers.cancel()
    await asyncio.gather(brokers, return_exceptions=True)
    listed = await command(member, "nodes")
    assert listed.output.count("active") == 3


async def test_a_rebalance_can_be_stopped(member: MetaMember, client: RemoteClient) -> None:
    await client.register_node(NodeRegistration("a", {}))
    await client.create_topic("t", 6, {})
    await client.register_node(NodeRegistration("b", {}))
    await client.rebalance("start", at_once=1)
    await until(client, lambda topic: any(p.target for p in topic.partitions))
    stopped = await command(member, "rebalance", "--stop")
    assert "2 partitions to move, 2 replicas to copy; 1 in progress; no rebalance running" in (
        stopped.output
    )
    refused = await command(member, "rebalance", "--leaving", "nobody")
    assert (refused.exit_code, "'nobody' is not registered" in refused.output) == (1, True)
    refused = await command(member, "rebalance", "--stop", "--plan")
    assert refused.exit_code == 1


async def test_a_full_broker_gets_no_new_topics(client: RemoteClient) -> None:
    loads = {"a": 0.95, "b": 0.2}
    beats = []
    for name, used in loads.items():
        registered = await client.register_node(NodeRegistration(name, {}, heartbeats=True))

        async def beat(name: str, epoch: int, used: float) -> None:
            load = {"disk_used_ratio": used}
            async for _ in client.heartbeats(name, epoch, lambda: load, period_s=0.1):
                pass

        beats.append(asyncio.create_task(beat(name, registered.broker_epoch, used)))

    async def are_active() -> bool:
        return [node.state for node in await client.nodes()] == ["active", "active"]

    await true(are_active)
    topic = await client.create_topic("t", 4, {})
    assert {partition.leader for partition in topic.partitions} == {"b"}
    topic = await client.alter_topic("t", partitions=6)
    assert {partition.leader for partition in topic.partitions} == {"b"}
    for task in beats:
        task.cancel()
    await asyncio.gather(*beats, return_exceptions=True)


async def test_a_drained_broker_gives_up_its_replicas_and_is_forgotten(
    member: MetaMember, client: RemoteClient
) -> None:
    states: list[str] = []

    async def beat(epoch: int) -> None:
        async for state in client.heartbeats("b", epoch, period_s=0.1):
            states.append(state)

    await client.register_node(NodeRegistration("a", {}))
    leaving = await client.register_node(NodeRegistration("b", {}, heartbeats=True))
    beats = asyncio.create_task(beat(leaving.broker_epoch))
    await true(lambda: asyncio.sleep(0, "active" in states))
    alive = await command(member, "remove-node", "b")
    assert alive.exit_code == 1 and alive.output.endswith("node 'b' is alive: stop it first\n")
    await client.create_topic("t", 4, {})
    brokers = asyncio.create_task(catch_up(client))
    assert (await command(member, "remove-node", "b")).exit_code == 1, "it holds replicas"
    assert (await command(member, "drain", "b")).output == "draining b\n"
    await client.rebalance("start")
    await until(client, lambda topic: held(topic, "b") == 0)
    assert states[-1] == "draining"
    beats.cancel()

    async def is_forgotten() -> bool:
        return [node.node_id for node in await client.nodes()] == ["a"]

    await true(is_forgotten)
    brokers.cancel()
    await asyncio.gather(beats, brokers, return_exceptions=True)
    with pytest.raises(NotFound):
        await client.drain_node("b")
