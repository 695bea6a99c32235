"""Goal: an operator moves one partition, gives its leadership back, and as a last resort lets a
replica lead that lacks records."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import pytest

from lakemq.broker_core.administration import unclean
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.types import PartitionDescription, ReplicaEnd
from lakemq.meta_service.server.member import MetaMember
from tests.support.meta.brokers import alive, command, true


async def partition(client: RemoteClient, number: int = 0) -> PartitionDescription:
    return (await client.topics())[1][0].partitions[number]


async def test_a_partition_moves_and_leads_where_it_was_told(
    member: MetaMember, client: RemoteClient
) -> None:
    async with alive(client, "a", "b", "c", "d"):
        await client.create_topic("t", 2, {}, replication=3, min_in_sync=2)
        before = await partition(client, 1)
        (other,) = set("abcd") - set(before.replicas)
        target = (other, *before.replicas[:2])
        moved = await command(member, "partition", "move", "t/1", "--to", ",".join(target))
        assert moved.output == f"moving t/1: {' '.join(before.replicas)} -> {' '.join(target)}\n"

        async def is_there() -> bool:
            now = await partition(client, 1)
            return now.replicas == target and not now.target

        await true(is_there)
        after = await partition(client, 1)
        assert set(after.in_sync) == set(target)
        elected = await command(member, "partition", "elect", "t/1")
        assert elected.output == f"t/1 is led by {other}\n"
        assert (await partition(client, 1)).leader == other


async def test_what_cannot_be_moved_or_elected_is_named(
    member: MetaMember, client: RemoteClient
) -> None:
    async with alive(client, "a", "b", "c"):
        await client.create_topic("t", 1, {}, replication=2)
        for arguments, code, why in (
            (("move", "t/0", "--to", "a"), 1, "topic 't' wants 2 replicas, not 1"),
            (("move", "t/0", "--to", "a,x"), 1, "x is not registered"),
            (("move", "t/0", "--to", "a,a"), 1, "names a node twice"),
            (("move", "t/1", "--to", "a,b"), 4, "topic 't' has no partition 1"),
            (("elect", "u/0"), 4, "topic 'u' does not exist"),
            (("elect", "t/1"), 4, "topic 't' has no partition 1"),
            (("elect", "t/0", "--unclean"), 1, "nothing to elect"),
            (("elect", "t/0", "--to", "b"), 2, "--to belongs to --unclean"),
        ):
            refused = await command(member, "partition", *arguments)
            assert (refused.exit_code, why in refused.output) == (code, True), refused.output
        assert (await command(member, "partition", "elect", "t")).exit_code == 2


async def test_an_unclean_election_needs_the_name_typed_in(
    member: MetaMember, client: RemoteClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as rest:
        async with alive(client, "a", catching_up=False):
            await client.create_topic("t", 1, {})
            # b is a replica, but never was in sync.
            await client.alter_topic("t", replication=2)
            await rest.enter_async_context(alive(client, "b", catching_up=False))
            await true(lambda: _has_replicas(client, 2))
        # A node that is only silent keeps what it alone has; one that has stopped does not.
        epochs = {node.node_id: node.broker_epoch for node in await client.nodes()}
        await client.leave("a", epochs["a"])
        await true(lambda: _is_leaderless(client))
        wrong = await command(member, "partition", "elect", "t/0", "--unclean", typed="t/1\n")
        assert (wrong.exit_code, "nothing was changed" in wrong.output) == (1, True)
        assert (await partition(client)).leader is None
        dead = await command(member, "partition", "elect", "t/0", "--unclean", "--to", "a")
        assert "no such replica of t/0 is active: a fenced, b active" in dead.output
        with caplog.at_level(logging.WARNING):
            done = await command(member, "partition", "elect", "t/0", "--unclean", typed="t/0\n")
        assert done.exit_code == 0, done.output
        after = await partition(client)
        assert (after.leader, after.in_sync) == ("b", ("b",))
        assert f"t/0 is led by b in leader epoch {after.leader_epoch}" in done.output
        assert "unclean election: t/0 is led by b" in caplog.text


async def test_the_replica_with_the_most_records_leads(
    member: MetaMember, client: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unclean, "_LOOK_S", 0.05)
    ends: dict[str, list[ReplicaEnd]] = {}
    async with AsyncExitStack() as rest:
        async with alive(client, "a", catching_up=False):
            topic = await client.create_topic("t", 1, {})
            await client.alter_topic("t", replication=4)
            others = alive(client, "b", "c", "d", catching_up=False, ends=ends)
            await rest.enter_async_context(others)
            await true(lambda: _has_replicas(client, 4))
        epochs = {node.node_id: node.broker_epoch for node in await client.nodes()}
        await client.leave("a", epochs["a"])
        await true(lambda: _is_leaderless(client))
        place = topic.topic_id, 0
        ends["b"] = [ReplicaEnd("f" * 32, 0, 9, 0, 999), ReplicaEnd(*place, 3, 0, 100)]
        ends["c"] = [ReplicaEnd(*place, 4, 5, 90)]
        silent = await command(member, "partition", "elect", "t/0", "--unclean")
        assert (silent.exit_code, "d did not say what it has of t/0" in silent.output) == (1, True)
        ends["d"] = [ReplicaEnd(*place, 4, 5, 80)]
        done = await command(member, "partition", "elect", "t/0", "--unclean", typed="t/0\n")
        assert done.exit_code == 0, done.output
        assert "b has offsets 0..99, the last of leader epoch 3\n" in done.output
        assert "c has offsets 5..89, the last of leader epoch 4\n" in done.output
        assert "With c as its leader it goes on at offset 90" in done.output
        after = await partition(client)
        assert (after.leader, after.in_sync) == ("c", ("c",))


async def _has_replicas(client: RemoteClient, count: int) -> bool:
    return len((await partition(client)).replicas) == count


async def _is_leaderless(client: RemoteClient) -> bool:
    return (await partition(client)).leader is None


async def test_replicas_that_a_topic_wants_come_by_themselves(
    member: MetaMember, client: RemoteClient
) -> None:
    async with alive(client, "a", "b", "c"):
        await client.create_topic("t", 3, {})
        await client.alter_topic("t", replication=3, min_in_sync=2)

        async def are_all_in_sync() -> bool:
            return all([len((await partition(client, n)).in_sync) == 3 for n in range(3)])

        await true(are_all_in_sync)
        listed = await command(member, "partition", "list", "--under-replicated")
        assert len(listed.output.splitlines()) == 1
        await client.alter_topic("t", replication=2)

        async def are_two() -> bool:
            return all([len((await partition(client, n)).replicas) == 2 for n in range(3)])

        await true(are_two)
