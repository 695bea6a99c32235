"""Real members in network namespaces whose links are cut. Nothing acknowledged is lost.

One cut runs by default; `LAKEMQ_FAULT_ROUNDS=2` or more runs them all.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakemq.meta_service.api.errors import MetaError
from lakemq.meta_service.api.remote.client import RemoteClient
from tests.support.meta.group import Group
from tests.support.meta.load import Load
from tests.support.meta.network import Network, why_not

REASON = why_not()
long_run = pytest.mark.skipif(
    int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1")) < 2, reason="LAKEMQ_FAULT_ROUNDS is below 2"
)
pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON), reason=REASON or "namespaces work"),
]


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    network = Network(3)
    try:
        network.start()
        yield network
    finally:
        network.stop()


@pytest.fixture
async def group(tmp_path: Path, network: Network) -> AsyncIterator[Group]:
    group = Group(tmp_path, hosts=network.hosts, prefixes=network.prefixes())
    try:
        group.start_all()
        yield group
    finally:
        group.stop()


@pytest.fixture
async def client(group: Group) -> AsyncIterator[RemoteClient]:
    client = group.client(timeout_s=60.0, attempt_s=0.7)
    yield client
    await client.close()


async def until_leader_among(group: Group, names: list[str]) -> tuple[str, float]:
    begin = time.monotonic()
    leader = await asyncio.wait_for(group.leader(names), 60)
    return leader, time.monotonic() - begin


async def test_a_leader_cut_off_is_replaced_and_says_nothing_stale(
    group: Group, network: Network, client: RemoteClient
) -> None:
    load = Load(client)
    load.start()
    await asyncio.sleep(0.5)
    old = await group.leader()
    others = [name for name in group.names if name != old]
    await client.put(b"truth", b"old")
    network.isolate(group.names.index(old))
    _, took = await until_leader_among(group, others)
    there = group.client_of(others[0], timeout_s=60.0, attempt_s=0.7)
    await there.put(b"truth", b"new")
    network.heal()
    asked = group.client_of(old, timeout_s=60.0, attempt_s=60.0)
    for _ in range(20):
        row = await asked.get(b"truth")
        assert row is not None and row.value == b"new"
    await asyncio.sleep(1.0)
    await load.stop()
    await load.check()
    print(f"another member led after {took:.2f} s; {len(load.acked)} acknowledged")
    await there.close()
    await asked.close()


@long_run
async def test_a_leader_that_hears_nothing_gives_way(
    group: Group, network: Network, client: RemoteClient
) -> None:
    """It can send, but nothing reaches it: it must not keep the others from electing."""
    load = Load(client)
    load.start()
    await asyncio.sleep(0.5)
    old = group.names.index(await group.leader())
    for other in range(3):
        if other != old:
            network.cut_one_way(other, old)
    others = [name for name in group.names if name != group.names[old]]
    _, took = await until_leader_among(group, others)
    await client.put(b"after", b"1")
    network.heal()
    await asyncio.sleep(1.0)
    await load.stop()
    await load.check()
    print(f"another member led after {took:.2f} s; {len(load.acked)} acknowledged")


@long_run
async def test_a_partial_partition_does_not_change_the_leader(
    group: Group, network: Network, client: RemoteClient
) -> None:
    """Leader and one follower do not see each other; the third sees both."""
    leader = await group.leader()
    at = group.names.index(leader)
    cut = next(number for number in range(3) if number != at)
    before = await client.status()
    network.cut_one_way(at, cut)
    network.cut_one_way(cut, at)
    for number in range(40):
        await client.put(b"k%d" % number, b"v")
        await asyncio.sleep(0.1)
    assert await group.leader([leader]) == leader
    status = await group.client_of(leader).status()
    assert status.term == before.term
    network.heal()


@long_run
async def test_without_a_majority_nothing_is_acknowledged(
    group: Group, network: Network, client: RemoteClient
) -> None:
    leader = await group.leader()
    for name in group.names:
        if name != leader:
            network.isolate(group.names.index(name))
    alone = group.client_of(leader, timeout_s=3.0, attempt_s=1.0)
    with pytest.raises(MetaError):
        await alone.put(b"never", b"acknowledged")
    with pytest.raises(MetaError):
        await alone.get(b"anything")
    await alone.close()
    network.heal()
    await client.put(b"healed", b"1")
