"""Goal: a leader answers each ask once, and says when it cannot (docs/formats/peer.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lakemq.broker_core.api.errors import CorruptBatch
from lakemq.broker_core.cluster.replica_frames import SlotAsk, SlotOpen
from tests.support.replication.nodes import PLACE, TestCluster
from tests.support.replication.script import Script

OPENED = [SlotOpen(1, PLACE.topic_id, 0, 1)]


@pytest.fixture
async def cluster() -> AsyncIterator[TestCluster]:
    found = TestCluster()
    yield found
    await found.stop()


async def test_a_batch_that_cannot_be_read_is_told_as_corrupt(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1, in_sync=["a"], among=["a"])
    log.append(b"x")
    read, damaged = log.read_replica, CorruptBatch("a bit flipped")

    def fail(*_: object) -> asyncio.Future[bytes]:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        future.set_exception(damaged)
        return future

    log.read_replica = fail  # type: ignore[method-assign]
    script = Script(cluster, "b", 2)
    script.say(opens=OPENED, asks=[SlotAsk(1, 0, -1, 0)], credit_bytes=1000)
    await cluster.until(lambda: any(each.code == "CORRUPT" for each in script.sends))
    log.read_replica = read  # type: ignore[method-assign]
    script.say(asks=[SlotAsk(1, 0, -1, 0)])
    await cluster.until(lambda: any(each.batches for each in script.sends))


async def test_an_ask_that_another_one_replaced_is_not_answered(cluster: TestCluster) -> None:
    log = await cluster.elect("a", 1, in_sync=["a"], among=["a"])
    for value in (b"x", b"y"):
        log.append(value)
    log.slow_reads = asyncio.Event()
    script = Script(cluster, "b", 2)
    script.say(opens=OPENED, asks=[SlotAsk(1, 0, -1, 0)], credit_bytes=1000)
    await asyncio.sleep(0.01)  # its read is under way
    script.say(asks=[SlotAsk(1, 1, 1, 1)])
    await asyncio.sleep(0.01)
    log.slow_reads.set()
    await cluster.until(lambda: any(each.batches for each in script.sends))
    assert {each.base for each in script.sends if each.batches} == {1}
