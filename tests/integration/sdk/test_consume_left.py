"""Goal: whoever leaves a loop over `consume`, or closes the client meanwhile, leaves no task behind
that waits for ever, in asyncio and on the event loop of blocking programs."""

from __future__ import annotations

import asyncio
from threading import Thread
from time import monotonic

import pytest

import lakemq
from lakemq.plugins.native.sdk.blocking.portal import Portal
from tests.support.node.node import NodeProcess

pytestmark = pytest.mark.partitions(2)
AHEAD = 40
"""Batches of each partition: more than are read ahead."""


@pytest.fixture
def filled(client: lakemq.SyncClient, topic: str) -> str:
    for number in range(2 * AHEAD):
        client.send_batch(topic, [lakemq.NewRecord(b"x" * 100)], partition=number % 2)
    return topic


async def nothing_runs() -> None:
    end = monotonic() + 20
    while len(asyncio.all_tasks()) > 1:
        assert monotonic() < end, asyncio.all_tasks()
        await asyncio.sleep(0.02)


async def test_closing_a_client_ends_what_reads(node: NodeProcess, filled: str) -> None:
    """Also while half of the records wait to be taken."""
    async with lakemq.Client(node.native) as client:
        records = client.consume(filled, follow=True)
        placed = client.consume_from(filled, {0: "earliest", 1: "earliest"}, follow=True)
        assert (await anext(records)).value == (await anext(placed)).value
        await asyncio.sleep(0.2)  # as much is read ahead as there may be
    await nothing_runs()
    for each in (records, placed):
        with pytest.raises(lakemq.InvalidRequest, match="this client is closed"):
            async for _ in each:
                pass


async def test_a_loop_that_is_left_is_ended_with_its_iterator(
    node: NodeProcess, filled: str
) -> None:
    def reading() -> int:  # gRPC has tasks of its own, which come and go
        return sum("MergedBatches._read" in repr(each) for each in asyncio.all_tasks())

    async with lakemq.Client(node.native) as client:
        records = client.consume(filled)
        await anext(records)
        assert reading()
        await records.aclose()
        assert not reading()


def test_the_loop_of_a_blocking_program_ends(node: NodeProcess, filled: str) -> None:
    portal = Portal()
    kept = portal.run(lambda: _kept(node.native, filled))

    async def nothing() -> None: ...

    ending = Thread(target=portal.close, args=(nothing,), daemon=True)
    ending.start()
    ending.join(timeout=30)
    assert not ending.is_alive(), kept


async def _kept(address: str, topic: str) -> object:
    """Neither closed nor read to its end."""
    client = lakemq.Client(address)
    await client.__aenter__()
    records = client.consume(topic, follow=True)
    await anext(records)
    await asyncio.sleep(0.2)
    return client, records


async def test_all_records_come_however_many_are_ahead(node: NodeProcess, filled: str) -> None:
    async with lakemq.Client(node.native) as client:
        found = [each async for each in client.consume_from(filled, {0: "earliest", 1: 10})]
    assert [each.offset for each in found if each.partition == 0] == list(range(AHEAD))
    assert [each.offset for each in found if each.partition == 1] == list(range(10, AHEAD))
