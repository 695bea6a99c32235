"""Brokers without data, and the `lakemq` command, against a member of the MetaService."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

from typer.testing import CliRunner, Result

from lakemq.cli.commands import app
from lakemq.meta_service.api.remote.client import RemoteClient
from lakemq.meta_service.api.remote.control_calls import HeartbeatReport
from lakemq.meta_service.api.types import InSyncChange, NodeRegistration, ReplicaEnd
from lakemq.meta_service.server.member import MetaMember


async def command(member: MetaMember, *arguments: str, typed: str = "") -> Result:
    """`typed`: what is typed in when it asks."""
    arguments = (*arguments, "-a", member.addresses()["meta"])
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments), input=typed)


async def true(condition: Callable[[], Awaitable[bool]]) -> None:
    begin = time.monotonic()
    while not await condition():
        assert time.monotonic() < begin + 60, "it did not come true in time"
        await asyncio.sleep(0.05)


async def catch_up(client: RemoteClient) -> None:
    """What the brokers do: every replica of every partition gets in sync, for ever."""
    while True:
        epochs = {node.node_id: node.broker_epoch for node in await client.nodes()}
        for topic in (await client.topics())[1]:
            for p in topic.partitions:
                if p.leader and set(p.replicas) != set(p.in_sync):
                    members = {name: epochs.get(name, 0) for name in p.replicas}
                    wish = InSyncChange(
                        topic.topic_id, p.partition, p.leader_epoch, p.partition_epoch, members
                    )
                    await client.change_in_sync(p.leader, epochs.get(p.leader, 0), [wish])
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def alive(
    client: RemoteClient,
    *names: str,
    catching_up: bool = True,
    ends: Mapping[str, Sequence[ReplicaEnd]] = MappingProxyType({}),
    sizes: Sequence[tuple[str, int, int]] = (),
    **load: float,
) -> AsyncIterator[dict[str, float]]:
    """Nodes that send heartbeats with these figures, and whose replicas catch up, until the block
    ends. `ends`: what each says of its replicas without a leader. Gives the figures: what is
    changed there is told from then on, as in `sizes`."""

    async def beat(name: str) -> None:
        wanted = NodeRegistration(name, {}, heartbeats=True, roles=("broker",))
        node = await client.register_node(wanted)
        async for _ in client.heartbeats(
            name,
            node.broker_epoch,
            lambda _: HeartbeatReport(load, leaderless=ends.get(name, ()), sizes=sizes),
            period_s=0.1,
        ):
            pass

    tasks = [asyncio.create_task(beat(name)) for name in names]
    if catching_up:
        tasks.append(asyncio.create_task(catch_up(client)))

    async def are_active() -> bool:
        return {n.node_id for n in await client.nodes() if n.state == "active"} >= {*names}

    await true(are_active)
    try:
        yield load
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
