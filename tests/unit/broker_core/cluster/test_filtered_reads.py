"""Goal: a leader leaves out what a reader does not want, and nothing else, and says how far."""

from __future__ import annotations

import asyncio

from lakemq.broker_core.api.cluster.channels import Peer
from lakemq.broker_core.api.partition_ports import Wanted
from lakemq.broker_core.api.records.batch import RecordBatch
from lakemq.broker_core.api.types import CommittedBatch, FetchResult, Offset
from lakemq.broker_core.cluster.reading.fetch_frames import (
    FetchRequest,
    Wants,
    decode_requests,
    encode_requests,
)
from tests.unit.broker_core.cluster.test_readers import TOPIC_ID, Node
from tests.unit.broker_core.cluster.test_readers import nodes as nodes

WANTED = Wanted("f", 7)


def values(got: FetchResult) -> list[bytes | None]:
    return list(RecordBatch(got.data).values()) if got.data else []


def only(node: Node, *wanted: bytes) -> list[tuple[Peer, int, int]]:
    """Have the leader leave out batches of other values; returns what it asks."""
    asked: list[tuple[Peer, int, int]] = []

    def wants(peer: Peer, number: int, batch: CommittedBatch) -> bool:
        asked.append((peer, number, batch.base_offset))
        return RecordBatch(batch.data).values()[0] in wanted

    node.service.filter_by("f", wants)
    return asked


async def test_what_is_not_wanted_is_left_out(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    asked = only(first, b"b")
    reader = second.readers.reader("t", 0, WANTED)
    got = await reader.fetch(Offset(0), bytes_max=1000)
    assert (values(got), got.next_offset) == ([b"b"], 2)
    assert asked == [(Peer("n2", 1), 7, 0), (Peer("n2", 1), 7, 1)]


async def test_a_reader_learns_up_to_where_there_is_nothing(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    only(first)
    got = await second.readers.reader("t", 0, WANTED).fetch(Offset(0), bytes_max=100, wait_ms=30)
    assert (got.data, got.next_offset) == (b"", 2)


async def test_it_waits_for_what_is_wanted(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    only(first, b"d")
    reader = second.readers.reader("t", 0, WANTED)
    waiting = asyncio.create_task(reader.fetch(Offset(0), bytes_max=1000, wait_ms=5000))
    await asyncio.sleep(0.02)
    await first.append(b"c")
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await first.append(b"d")
    got = await waiting
    assert (values(got), got.next_offset) == ([b"d"], 4)


async def test_a_leader_without_the_filter_leaves_nothing_out(nodes: tuple[Node, Node]) -> None:
    _, second = nodes
    got = await second.readers.reader("t", 0, WANTED).fetch(Offset(0), bytes_max=100)
    assert got.next_offset >= 1
    assert values(got)[0] == b"a"


async def test_other_readers_get_everything(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    asked = only(first)
    got = await second.readers.reader("t", 0).fetch(Offset(0), bytes_max=1000)
    assert got.next_offset == 2
    assert asked == []


def test_the_filter_is_read_as_it_was_asked() -> None:
    request = FetchRequest(1, TOPIC_ID, 0, Wants.BATCHES, 5, 6, 7, 0, WANTED)
    assert decode_requests(encode_requests([request, request._replace(wanted=None)])) == [
        request,
        request._replace(wanted=None),
    ]
