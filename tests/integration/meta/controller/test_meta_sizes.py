"""What heartbeats say of nodes and partitions, and what the controller makes of it. Brokers are
played by heartbeats and by a task that reports replicas in sync."""

from __future__ import annotations

import json

from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import TopicDescription
from lakemq.meta_service.server.member import MetaMember
from tests.support.meta.brokers import alive, command, true

SMALL, LARGE = 1000, 1 << 30
Sizes = list[tuple[str, int, int]]


async def topic(client: RemoteClient) -> TopicDescription:
    _, (found,) = await client.topics()
    return found


async def are_active(client: RemoteClient, *names: str) -> None:
    async def hold() -> bool:
        found = {node.node_id: node.state for node in await client.nodes()}
        return found == dict.fromkeys(names, "active")

    await true(hold)


async def test_the_small_partitions_of_a_rebalance_move_first(client: RemoteClient) -> None:
    sizes: Sizes = []
    async with alive(client, "a", catching_up=False, sizes=sizes) as load:
        await are_active(client, "a")
        made = await client.create_topic("t", 6, {})
        sizes += [(made.topic_id, n, LARGE * (6 - n)) for n in range(6)]
        load["told"] = 1.0  # with the next heartbeat, as the sizes

        async def are_told() -> bool:
            return "told" in (await client.loads()).nodes[0].figures

        await true(are_told)
        async with alive(client, "b", catching_up=False):
            await are_active(client, "a", "b")
            await client.rebalance("start", at_once=1)

            async def has_begun() -> bool:
                return any(p.target for p in (await topic(client)).partitions)

            await true(has_begun)
            found = await topic(client)
            planned = await client.rebalance("plan")
    moving = [p.partition for p in found.partitions if p.target]
    left = [move.partition for move in planned.moves]
    assert len(moving) == 1 and len(left) == 2
    assert moving[0] > max(left), "higher numbers are smaller"


async def test_a_node_that_joins_is_given_what_is_nearly_empty(client: RemoteClient) -> None:
    sizes: Sizes = []
    async with alive(client, "a", sizes=sizes):
        await are_active(client, "a")
        made = await client.create_topic("t", 6, {})
        sizes += [(made.topic_id, n, SMALL if n < 3 else LARGE) for n in range(5)]
        async with alive(client, "b", uptime_s=1.0):

            async def has_its_share() -> bool:
                found = await topic(client)
                return [p.leader for p in found.partitions] == ["b"] * 3 + ["a"] * 3

            await true(has_its_share)
    assert not (await client.rebalance("plan")).running, "nobody asked for it"


async def test_leaderships_are_spread_when_replicas_of_early_topics_have_come(
    client: RemoteClient,
) -> None:
    sizes: Sizes = []
    async with alive(client, "a", sizes=sizes):
        await are_active(client, "a")
        made = await client.create_topic("t", 4, {}, replication=2)
        sizes += [(made.topic_id, n, SMALL) for n in range(4)]
        async with alive(client, "b", sizes=sizes, uptime_s=1.0):

            async def are_spread() -> bool:
                firsts = [p.replicas[0] for p in (await topic(client)).partitions]
                return sorted(firsts) == ["a", "a", "b", "b"]

            await true(are_spread)
    assert all(set(p.replicas) == {"a", "b"} for p in (await topic(client)).partitions)


async def test_node_list_shows_what_heartbeats_say(
    member: MetaMember, client: RemoteClient
) -> None:
    load = {
        "disk_used_ratio": 0.5,
        "connections": 12345.0,
        "replica_lag_records": 7.0,
        "uptime_s": 7300.0,
    }
    async with alive(client, "a", **load), alive(client, "b"):

        async def are_heard() -> bool:
            return len((await client.loads()).nodes) == 2

        await true(are_heard)
        await are_active(client, "a", "b")
        listed = (await command(member, "node", "list")).output.splitlines()
        told = json.loads((await command(member, "node", "list", "--json")).output)
    head, a, b = (line.split() for line in listed)
    names = "roles rack leads replicas disk connections behind up"
    assert head[2:10] == names.split()
    assert a[:11] == ["a", "active", "broker", "-", "0", "0", "0.50", "12,345", "7", "2", "h"]
    assert b[:10] == ["b", "active", "broker", "-", "0", "0", "-", "-", "-", "-"]
    assert (told[0]["roles"], told[0]["figures"]) == (["broker"], load)
