"""Real member processes with mutual TLS: killed, stopped, cut off. Nothing acknowledged is lost.

`LAKEMQ_FAULT_ROUNDS` sets how often each fault strikes (10 at night).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from lakemq.meta_service.api.remote.client import RemoteClient
from tests.support.meta.group import Group
from tests.support.meta.load import Load

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]
ROUNDS = int(os.environ.get("LAKEMQ_FAULT_ROUNDS", "1"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    # A small log, so that snapshots, compaction and snapshot transfer strike all the time.
    group = Group(tmp_path_factory.mktemp("group"), timing={"log_max_bytes": 200_000})
    yield group
    group.stop()


@pytest.fixture
def group(site: Group) -> Group:
    """With all members up, also after a test that failed."""
    down = [name for name in site.names if name not in site.processes]
    for name in down:
        site.start(name)
    for name in down:
        site.wait_ready(name)
    return site


@pytest.fixture
async def client(group: Group) -> AsyncIterator[RemoteClient]:
    client = group.client(timeout_s=60.0, attempt_s=1.0)
    yield client
    await client.close()


async def converged(group: Group) -> dict[str, tuple[int, str]]:
    """(applied index, digest) of every member, once they are equal."""
    deadline = time.monotonic() + 90
    while True:
        found = {}
        for name in group.names:
            client = group.client_of(name, timeout_s=60.0)
            status = await client.status()
            found[name] = (status.applied_index, str(status.detail["digest"]))
            await client.close()
        if len(set(found.values())) == 1:
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


async def test_kill_9_of_the_leader_under_load(group: Group, client: RemoteClient) -> None:
    load = Load(client)
    load.start()
    await asyncio.sleep(0.5)
    gaps = []
    for _ in range(ROUNDS):
        leader = await group.leader()
        load.gap_max_s = 0.0
        acked = len(load.acked)
        group.kill(leader)
        async with asyncio.timeout(60):
            while True:  # until another one leads
                await asyncio.sleep(0.02)
                if len(load.acked) > acked + 50:
                    break
        gaps.append(load.gap_max_s)
        group.start(leader)
        await asyncio.to_thread(group.wait_ready, leader)
        await asyncio.sleep(0.3)
    await load.stop()
    await load.check()
    await converged(group)
    print(f"{len(load.acked)} acknowledged; gaps {[f'{gap:.2f}' for gap in gaps]} s")


async def test_kill_9_of_all_members_at_once(group: Group, client: RemoteClient) -> None:
    rng = random.Random(7)
    load = Load(client)
    load.start()
    for _ in range(ROUNDS):
        await asyncio.sleep(rng.uniform(0.4, 1.0))
        for name in group.names:
            group.signal(name, signal.SIGKILL)
        for name in group.names:
            group.kill(name)
        await asyncio.to_thread(group.start_all)
    await asyncio.sleep(0.5)
    await load.stop()
    await load.check()
    await converged(group)


async def test_a_leader_stopped_past_the_election_answers_nothing_stale(
    group: Group, client: RemoteClient
) -> None:
    """SIGSTOP, a new leader, SIGCONT: what the old one says then must not be old."""
    for number in range(ROUNDS):
        leader = await group.leader()
        others = [name for name in group.names if name != leader]
        await client.put(b"truth", b"old%d" % number)
        group.signal(leader, signal.SIGSTOP)
        there = group.client_of(others[0], timeout_s=60.0, attempt_s=0.5)
        await there.put(b"truth", b"new%d" % number)
        await there.close()
        asked = group.client_of(leader, timeout_s=60.0, attempt_s=60.0)
        reads = [asyncio.create_task(asked.get(b"truth")) for _ in range(20)]
        await asyncio.sleep(0.1)
        group.signal(leader, signal.SIGCONT)
        for read in reads:
            row = await read
            assert row is not None and row.value == b"new%d" % number
        await asked.close()


async def test_a_member_that_was_away_gets_a_snapshot(group: Group, client: RemoteClient) -> None:
    leader = await group.leader()
    away = next(name for name in group.names if name != leader)
    group.kill(away)
    for start in range(0, 4000, 200):
        await asyncio.gather(
            *(client.put(b"k%d" % n, bytes(200)) for n in range(start, start + 200))
        )
    group.start(away)
    await asyncio.to_thread(group.wait_ready, away)
    await converged(group)
    there = group.client_of(away)
    assert int((await there.status()).detail["snapshots_installed"]) >= 1
    row = await there.get(b"k3999", stale=True)
    assert row is not None
    await there.close()
