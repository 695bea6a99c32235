"""Replicas that move from broker to broker: the controller, the catalog, the command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from lakemq.meta_service.api.errors import NotFound
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.remote.control_calls import HeartbeatReport
from lakemq.meta_service.api.types import (
    InSyncChange,
    NodeRegistration,
    Rebalance,
    TopicDescription,
)
from lakemq.meta_service.control import load_history, mover
from lakemq.meta_service.server.member import MetaMember
from tests.support.meta.brokers import alive, catch_up, command, true


async def until(client: RemoteClient, condition: Callable[[TopicDescription], bool]) -> None:
    async def holds() -> bool:
        return condition((await client.topics())[1][0])

    await true(holds)


def held(topic: TopicDescription, node: str) -> int:
    return sum(node in partition.replicas for partition in topic.partitions)


async def test_a_new_broker_gets_its_share(member: MetaMember, client: RemoteClient) -> None:
    for name in ("a", "b"):
        await client.register_node(NodeRegistration(name, {}))
    await client.create_topic("t", 6, {}, replication=2)
    await client.register_node(NodeRegistration("c", {}))
    before = (await client.topics())[1]

    shown = await command(member, "cluster", "rebalance", "--plan", "--at-once", "2")
    assert shown.exit_code == 0, shown.output
    assert "4 replicas to copy; 0 in progress; no rebalance running" in shown.output
    assert (await client.topics())[1] == before, "a plan changes nothing"

    started = await command(member, "cluster", "rebalance", "--at-once", "2")
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
    listed = await command(member, "node", "list")
    assert listed.output.count("active") == 3


async def test_a_rebalance_can_be_stopped(member: MetaMember, client: RemoteClient) -> None:
    await client.register_node(NodeRegistration("a", {}))
    await client.create_topic("t", 6, {})
    await client.register_node(NodeRegistration("b", {}))
    await client.rebalance("start", at_once=1)
    await until(client, lambda topic: any(p.target for p in topic.partitions))
    stopped = await command(member, "cluster", "rebalance", "--stop")
    assert "2 partitions to move, 2 replicas to copy; 1 in progress; no rebalance running" in (
        stopped.output
    )
    refused = await command(member, "cluster", "rebalance", "--stop", "--plan")
    assert refused.exit_code == 2


async def test_a_full_broker_gets_no_new_topics(client: RemoteClient) -> None:
    loads = {"a": 0.95, "b": 0.2}
    beats = []
    for name, used in loads.items():
        registered = await client.register_node(NodeRegistration(name, {}, heartbeats=True))

        async def beat(name: str, epoch: int, used: float) -> None:
            load = {"disk_used_ratio": used}
            async for _ in client.heartbeats(
                name, epoch, lambda _: HeartbeatReport(load), period_s=0.1
            ):
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


async def test_a_decommissioned_node_holds_nothing(
    member: MetaMember, client: RemoteClient
) -> None:
    async with alive(client, "a", "b", "c"):
        await client.create_topic("t", 6, {}, replication=2)
        done = await command(member, "node", "decommission", "b", "--at-once", "2")
        assert done.exit_code == 0, done.output
        assert done.output.startswith("b: 4 replicas left\n")
        assert done.output.endswith(
            "b: 0 replicas left\nb holds nothing: stop it, and it is removed\n"
        )
        listed = await command(member, "node", "list", "--json")
        found = {each["node"]: each for each in json.loads(listed.output)}
        assert [found[n]["replicas"] for n in "abc"] == [6, 0, 6]
        assert [found[n]["state"] for n in "abc"] == ["active", "draining", "active"]
        assert all(each["silent_s"] < 10 for each in found.values())
        undrained = await command(member, "node", "undrain", "b")
        assert undrained.output == "b is active\n"
        assert [n.state for n in await client.nodes()] == ["active"] * 3


async def test_internal_topics_do_not_move_but_are_given_away_on_request(
    member: MetaMember, client: RemoteClient
) -> None:
    async with alive(client, "a", "b"):
        await client.create_topic("__own", 4, {})
        await client.create_topic("t", 2, {})
        asked = await command(member, "node", "decommission", "b", typed="n\n")
        assert (asked.exit_code, "b leads 2 partitions of internal topics" in asked.output) == (
            1,
            True,
        ), asked.output
        (own, other) = (await client.topics())[1]
        assert (held(own, "b"), held(other, "b")) == (2, 0)
        assert not (await client.rebalance()).moves
        done = await command(member, "node", "decommission", "b", "--yes")
        assert done.exit_code == 0, done.output
        own = (await client.topics())[1][0]
        assert {p.leader for p in own.partitions} == {"a"} and held(own, "b") == 0


async def test_a_dead_node_is_decommissioned_and_removed(
    member: MetaMember, client: RemoteClient
) -> None:
    await client.register_node(NodeRegistration("b", {}, heartbeats=True))
    async with alive(client, "a", "c"):
        await client.create_topic("t", 2, {}, replication=2)
        async with alive(client, "b"):
            await client.rebalance("start")
            await client.alter_topic("t", partitions=4)
            await true(lambda: _holds(client, "b"))

        async def is_fenced() -> bool:
            return [n.state for n in await client.nodes()] == ["active", "fenced", "active"]

        await true(is_fenced)
        done = await command(member, "node", "decommission", "b")
        assert (done.exit_code, done.output.endswith("removed b\n")) == (0, True), done.output
        assert [n.node_id for n in await client.nodes()] == ["a", "c"]


async def test_a_decommission_does_not_wait_for_what_is_lost_with_the_node(
    member: MetaMember, client: RemoteClient
) -> None:
    await client.register_node(NodeRegistration("b", {}, heartbeats=True))
    async with alive(client, "b"):
        await client.create_topic("alone", 2, {}, replication=1)
    await client.register_node(NodeRegistration("a", {}, heartbeats=True))
    async with alive(client, "a"):

        async def is_fenced() -> bool:
            return [n.state for n in await client.nodes()] == ["active", "fenced"]

        await true(is_fenced)
        async with asyncio.timeout(20):
            refused = await command(member, "node", "decommission", "b")
        assert refused.exit_code == 1
        assert "no replica in sync but that of 'b' (alone/0, alone/1)" in refused.output


async def _holds(client: RemoteClient, name: str) -> bool:
    return held((await client.topics())[1][0], name) > 0


async def test_a_decommission_without_room_says_so_and_can_be_undone(
    member: MetaMember, client: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with alive(client, "a", "b"):
        await client.create_topic("t", 2, {}, replication=2)
        refused = await command(member, "node", "decommission", "b")
        assert refused.exit_code == 1
        assert "2 replicas of 'b' have nowhere to go (t/0, t/1)" in refused.output
        unknown = await command(member, "node", "decommission", "x")
        assert (unknown.exit_code, "'x' is not registered" in unknown.output) == (4, True)
        monkeypatch.setattr(mover, "PLAN_S", 3600.0)  # no plan is made meanwhile
        await client.rebalance("start", leaving=["b"], at_once=3)
        assert (await command(member, "node", "undrain", "b")).exit_code == 0
        await client.register_node(NodeRegistration("c", {}))
        monkeypatch.setattr(mover, "PLAN_S", 0.05)

        async def is_over() -> bool:
            return not (await client.rebalance()).running

        await true(is_over)
        topic = (await client.topics())[1][0]
        assert held(topic, "b") > 0 and held(topic, "c") == 1, "only its share goes to the new node"


async def test_partitions_that_lack_something_are_listed(
    member: MetaMember, client: RemoteClient
) -> None:
    for name in "abc":
        await client.register_node(NodeRegistration(name, {}))
    await client.create_topic("t", 2, {}, replication=2)
    await client.create_topic("u", 1, {}, replication=3)
    (first, _) = (await client.topics())[1][0].partitions
    assert first.leader
    epoch = {node.node_id: node.broker_epoch for node in await client.nodes()}[first.leader]
    topic_id = (await client.topics())[1][0].topic_id
    wish = InSyncChange(topic_id, 0, 0, 0, {first.leader: epoch})
    await client.change_in_sync(first.leader, epoch, [wish])
    everything = await command(member, "partition", "list")
    assert [line.split()[0] for line in everything.output.splitlines()] == [
        "partition", "t/0", "t/1", "u/0",
    ]  # fmt: skip
    some = await command(member, "partition", "list", "--under-replicated", "--moving")
    (line,) = some.output.splitlines()[1:]
    assert line.split() == [
        "t/0", first.leader, "0", *first.replicas, first.leader, "-", "1", "-", "under-replicated",
    ]  # fmt: skip
    assert len((await command(member, "partition", "list", "--leaderless")).output.split("\n")) == 2
    as_json = await command(member, "partition", "list", "--topic", "u", "--json")
    (found,) = json.loads(as_json.output)
    assert (found["topic"], found["lacks"], len(found["in_sync"])) == ("u", [], 3)


async def test_advice_follows_from_what_nodes_say(
    member: MetaMember, client: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_history, "SAMPLE_S", 0.0)
    nothing = await command(member, "cluster", "advice", "--json")
    assert json.loads(nothing.output)["nodes_wanted"] == 1, nothing.output
    async with alive(client, "a", "b", disk_used_ratio=0.5, connections=90_000.0):
        told = await command(member, "cluster", "advice")
        assert told.output == "add 1 node (connections 0.90)\n"
        listed = await command(member, "node", "list")
        assert listed.output.splitlines()[1].split()[4:7] == ["0", "0", "0.50"]


async def test_a_fenced_node_is_not_undrained(member: MetaMember, client: RemoteClient) -> None:
    await client.register_node(NodeRegistration("a", {}, heartbeats=True))
    refused = await command(member, "node", "undrain", "a")
    assert (refused.exit_code, "'a' is fenced" in refused.output) == (1, True)


async def test_a_drained_broker_gives_up_its_replicas_and_is_forgotten(
    member: MetaMember, client: RemoteClient
) -> None:
    states: list[str] = []

    async def beat(epoch: int) -> None:
        async for state, _ in client.heartbeats("b", epoch, period_s=0.1):
            states.append(state)

    await client.register_node(NodeRegistration("a", {}))
    leaving = await client.register_node(NodeRegistration("b", {}, heartbeats=True))
    beats = asyncio.create_task(beat(leaving.broker_epoch))
    await true(lambda: asyncio.sleep(0, "active" in states))
    alive = await command(member, "node", "remove", "b")
    assert alive.exit_code == 1 and alive.output.endswith("node 'b' is alive: stop it first\n")
    await client.create_topic("t", 4, {})
    brokers = asyncio.create_task(catch_up(client))
    assert (await command(member, "node", "remove", "b")).exit_code == 1, "it holds replicas"
    assert (await command(member, "node", "drain", "b")).output == "draining b\n"
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
