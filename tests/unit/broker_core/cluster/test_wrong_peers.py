"""Goal: a broker that is wrong costs another one memory and time within bounds, and no other
partitions than its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.types import Acks, Columns
from lakemq.broker_core.cluster.append_frames import (
    ENTRIES_MAX,
    AppendRequest,
    decode_answers,
    decode_appends,
    request_bytes,
)
from lakemq.broker_core.cluster.append_service import AppendService
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.replica_frames import (
    CREDIT_MAX_BYTES,
    SEND_MAX_BYTES,
    ReplicaAsk,
    ReplicaSend,
    SlotAsk,
    SlotOpen,
    SlotSend,
    decode_send,
    encode_ask,
    encode_send,
)
from lakemq.broker_core.cluster.streams import CREDIT_BYTES, FollowerStream, LeaderStream
from lakemq.broker_core.cluster.wire import BadFrame, length_head
from lakemq.broker_core.replication.sender import READ_MAX_BYTES
from lakemq.broker_core.replication.types import Place
from tests.support.growth import cpu_s
from tests.support.replication.nodes import TestCluster
from tests.support.replication.script import Script

UNKNOWN_ID = "0f" * 16


class Flood:
    """A stream whose other side sends the same message for ever. Implements `ByteStream`."""

    def __init__(self, message: bytes) -> None:
        self.reads = 0
        self.room = asyncio.Event()
        """Set: the other side takes what is written."""
        self.written: list[bytes] = []
        self._message = message

    async def read(self) -> bytes | None:
        await asyncio.sleep(0)
        self.reads += 1
        return self._message

    async def is_read(self, times: int) -> None:
        while self.reads < times:  # noqa: ASYNC110  at each of its turns another may be due
            await asyncio.sleep(0)

    async def write(self, data: bytes) -> None:
        await self.room.wait()
        self.written.append(data)
        await asyncio.sleep(0)


async def stands(flood: Flood) -> int:
    """Messages that were read when no more are; fails while more are read."""
    async with asyncio.timeout(20):
        before = -1
        while flood.reads != before:
            before = flood.reads
            assert before < 200, "it reads on"
            for _ in range(50):
                await asyncio.sleep(0)
        return before


class Topics:
    """Partitions of a node that knows no topic."""

    def find_id(self, topic_id: str) -> None:
        return None


async def test_refusals_that_are_not_taken_end_the_reading() -> None:
    request = AppendRequest(1, UNKNOWN_ID, 0, 1, Acks.LEADER, b"")
    flood = Flood(b"".join(request_bytes(request)) * ENTRIES_MAX)
    service: Any = AppendService(Topics())  # type: ignore[arg-type]
    serving = asyncio.ensure_future(service.serve(Peer("n2", 1), flood))
    read = await stands(flood)
    assert 1 < read < 30
    flood.room.set()  # and goes on when they are
    await flood.is_read(3 * read)
    assert sum(len(decode_answers(each)) for each in flood.written) > read * ENTRIES_MAX
    serving.cancel()


async def test_answers_to_asks_that_are_not_taken_end_the_reading() -> None:
    cluster = TestCluster(["a"])
    opened = encode_ask(ReplicaAsk([SlotOpen(1, UNKNOWN_ID, 0, 1)], [SlotAsk(1, 0, -1, 0)]))
    flood = Flood(opened)
    stream = FollowerStream(Peer("b", 2), flood)
    serving = asyncio.ensure_future(stream.run(cluster.nodes["a"].replication.serve))
    await flood.is_read(1)
    flood._message = encode_ask(ReplicaAsk(asks=[SlotAsk(1, 0, -1, 0)] * ENTRIES_MAX))
    read = await stands(flood)
    assert 1 < read < 30
    flood.room.set()
    await flood.is_read(3 * read)
    assert sum(len(decode_send(each).sends) for each in flood.written) > read * ENTRIES_MAX // 2
    serving.cancel()
    await cluster.stop()


@pytest.mark.parametrize("decode", [decode_send, decode_appends])
def test_fields_that_say_nothing_are_not_gone_through(decode: Callable[[bytes], object]) -> None:
    many = b"\x78\x01" * 500_000
    entry = length_head(1, len(many)) + many
    for message in (many, entry):

        def refused(message: bytes = message) -> None:
            with pytest.raises(BadFrame, match="fields"):
                decode(message)

        assert cpu_s(lambda: refused) < 0.05


@pytest.fixture
async def cluster() -> AsyncIterator[TestCluster]:
    found = TestCluster()
    yield found
    await found.stop()


async def test_partitions_that_are_read_at_a_time_share_the_credit(cluster: TestCluster) -> None:
    """All of a new replica's partitions are read from the disk at once."""
    places = [Place(f"{number:032x}", 0) for number in range(200)]
    value = bytes(READ_MAX_BYTES - 1000)
    asked: dict[Place, int] = {}
    release = asyncio.Event()
    batch = encode(Columns([value]), now_ms=1)
    for place in places:
        log = await cluster.elect("a", 1, in_sync=["a"], among=["a"], place=place)
        log.append(b"x")

        async def read(offset: int, size: int, place: Place = place) -> bytes:
            asked[place] = size
            await release.wait()
            return batch

        log.read_replica = lambda *at, read=read: asyncio.ensure_future(read(*at))  # type: ignore[method-assign]
    script = Script(cluster, "b", 2)
    credit = 8 * READ_MAX_BYTES
    script.say(
        opens=[SlotOpen(n, place.topic_id, 0, 1) for n, place in enumerate(places, 1)],
        asks=[SlotAsk(n, 0, -1, 0) for n in range(1, len(places) + 1)],
        credit_bytes=credit,
    )
    await cluster.until(lambda: len(asked) >= 8)
    await asyncio.sleep(0.02)
    assert sum(asked.values()) <= credit
    # What is left of the credit, and what comes, goes to those that wait, each once.
    release.set()
    while len(asked) < len(places):
        script.say(credit_bytes=READ_MAX_BYTES)
        await asyncio.sleep(0.001)
    script.say(credit_bytes=CREDIT_MAX_BYTES)
    await cluster.until(lambda: sum(bool(each.batches) for each in script.sends) == len(places))


async def test_a_partition_has_one_slot_of_a_stream(cluster: TestCluster) -> None:
    """However many are opened for it: the leader goes through its slots with every flush."""
    place = Place("0" * 32, 0)
    log = await cluster.elect("a", 1, in_sync=["a"], among=["a"])
    script = Script(cluster, "b", 2)
    for first in range(1, 4001, 1000):
        slots = range(first, first + 1000)
        script.say(
            opens=[SlotOpen(slot, place.topic_id, 0, 1) for slot in slots],
            asks=[SlotAsk(slot, 0, -1, 0) for slot in slots],
            credit_bytes=1000,
        )
    leading = cluster.nodes["a"].replication.leading(place)
    await cluster.until(lambda: script.inbox.empty() and script.stream.room_bytes == 4000)
    assert leading is not None and len(leading._slots) == 1
    log.append(b"x")
    await cluster.until(lambda: any(each.batches for each in script.sends))
    assert [each.slot for each in script.sends if each.batches] == [4000]


async def test_a_node_without_a_replica_ends_no_leadership(cluster: TestCluster) -> None:
    await cluster.elect("a", 1)
    log = cluster.nodes["a"].log()
    script = Script(cluster, "stranger", 9)
    script.say(opens=[SlotOpen(1, "0" * 32, 0, 2**62)], asks=[SlotAsk(1, 0, -1, 0)])
    await cluster.until(lambda: any(each.code == "NOT_REPLICA" for each in script.sends))
    assert cluster.nodes["a"].replication.leading(Place("0" * 32, 0)) is not None
    await log.append(b"goes on")


async def test_a_later_epoch_that_the_catalog_does_not_know_costs_an_election(
    cluster: TestCluster,
) -> None:
    """Not the partition: its log takes the next epoch, whatever the follower said."""
    place = Place("0" * 32, 0)
    await cluster.elect("a", 1, among=["a", "c"])
    node = cluster.nodes["a"]
    script = Script(cluster, "b", 2)
    script.say(opens=[SlotOpen(1, place.topic_id, 0, 2**62)], asks=[SlotAsk(1, 0, -1, 0)])
    await cluster.until(lambda: node.resigned == [(place, 1)])
    assert node.replication.leading(place) is None and node.log().epoch == 1
    script.inbox.put_nowait(None)
    await (await cluster.elect("a", 2)).append(b"goes on")


async def test_a_leader_that_sends_beyond_its_credit_is_left() -> None:
    """What a follower has not stored yet is in its memory."""
    batches = bytes(1024 * 1024)
    flood = Flood(encode_send(ReplicaSend([SlotSend(1, 0, batches)], 1)))
    flood.room.set()
    kept = []

    async def keep(stream: LeaderStream) -> None:
        while message := await stream.receive():
            kept.append(message)

    with pytest.raises(BadFrame, match="more than there was credit for"):
        async with asyncio.timeout(20):
            await LeaderStream("a", flood).run(keep)
    assert (
        CREDIT_BYTES // len(batches) < len(kept) <= (CREDIT_BYTES + SEND_MAX_BYTES) // len(batches)
    )
