"""Goal: a reader gives what is committed of a partition, whichever node leads it and though that
changes; it says what was lost, and never takes for the end what only one replica does not have.

Method: nodes over journals of their own, joined by streams in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    OffsetOutOfRange,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from lakemq.broker_core.api.records.batch import encode, read_header, split
from lakemq.broker_core.api.types import (
    Acks,
    Columns,
    FetchResult,
    Leadership,
    Offset,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.reading import fetch_link, fetch_service, readers
from lakemq.broker_core.cluster.reading.fetch_frames import (
    FetchAnswer,
    FetchRequest,
    Wants,
    answer_parts,
    decode_answer,
    decode_requests,
    encode_requests,
)
from lakemq.broker_core.cluster.reading.fetch_service import FetchService
from lakemq.broker_core.cluster.reading.readers import Readers
from lakemq.broker_core.cluster.streams import ByteStream
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.partitions import Partitions
from lakemq.plugins.journal.log.partition_log import JournalLog
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from tests.support.replication.nodes import Cable, Pipe, TestCluster, assignments_of

TOPIC_ID = "0a" * 16
OWN_ID = "0b" * 16


def topic(leader: str | None, epoch: int = 1, topic_id: str = TOPIC_ID) -> TopicInfo:
    """Of one partition, of which both nodes may hold a copy: the catalog names only the leader, so
    that each node leads its log by itself."""
    replicas = (leader,) if leader else ("n9",)
    return TopicInfo("t", topic_id, 1, TopicConfig(), 1, (Leadership(leader, epoch, replicas),))


class Node:
    """A broker's partitions over a journal of its own, what others read of it, and its readers."""

    def __init__(self, name: str, folder: Path, network: dict[str, Node]) -> None:
        self.name = name
        self.network = network
        self.reachable = True
        self.storage = JournalStorage(folder, JournalSettings(free_min_bytes=0))
        self.cluster = TestCluster([name, "other"])
        self.partitions = Partitions(name, self.storage, assignments_of(self.cluster.nodes[name]))
        peers: Any = self
        self.readers = Readers(name, self.partitions, peers)
        self.service = FetchService(self.partitions)
        self.serving: set[asyncio.Task[None]] = set()
        self.streams = 0
        network[name] = self

    def keep(
        self, node: str, method: str, talk: Callable[[ByteStream], Awaitable[None]]
    ) -> Callable[[], None]:
        """As `Peers.keep`."""
        assert method == "Fetch"
        task = asyncio.create_task(self._keep(self.network[node], talk))
        self.serving.add(task)

        def end() -> None:
            task.cancel()

        return end

    async def _keep(self, other: Node, talk: Callable[[ByteStream], Awaitable[None]]) -> None:
        while True:
            if other.reachable:
                self.streams += 1
                mine, theirs = Pipe(Cable()), Pipe(Cable())
                mine.other, theirs.other = theirs, mine
                served = asyncio.create_task(other.service.serve(Peer(self.name, 1), theirs))
                other.serving.add(served)
                served.add_done_callback(lambda _, pipe=mine: pipe.inbox.put_nowait(None))
                try:
                    with suppress(LakeMQError):
                        await talk(mine)
                finally:
                    served.cancel()
                    await asyncio.gather(served, return_exceptions=True)
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """It can't be reached, and its streams end."""
        self.reachable = False
        for task in tuple(self.serving):
            task.cancel()
        self.serving.clear()

    async def obey(self, info: TopicInfo) -> None:
        known = self.partitions.find(info.name)
        if known is not None and known.topic_id != info.topic_id:
            await self.partitions.close(known)
        await self.partitions.assign(info)
        self.readers.changed(info.name, info)

    async def append(self, *values: bytes) -> None:
        batch = encode(Columns(list(values)), now_ms=5)
        await self.partitions.log("t", 0).append(batch, read_header(batch), Acks.LEADER)

    async def stop(self) -> None:
        self.readers.stop()
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)
        await self.cluster.stop()
        await self.storage.stop()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """n1 leads the partition, which has two records in two batches."""
    network: dict[str, Node] = {}
    first, second = (Node(name, tmp_path / name, network) for name in ("n1", "n2"))
    for node in (first, second):
        await node.storage.start()
        await node.obey(topic("n1"))
    await first.append(b"a")
    await first.append(b"b")
    yield first, second
    await first.stop()
    await second.stop()


def offsets(result: FetchResult) -> list[int]:
    return [header.base_offset for _, header in split(result.data)]


async def fetch(node: Node, offset: int, *, wait_ms: int = 0, bytes_max: int = 1 << 20) -> Any:
    return await node.readers.reader("t", 0).fetch(
        Offset(offset), bytes_max=bytes_max, wait_ms=wait_ms
    )


async def test_each_node_reads_the_same(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        result = await fetch(node, 0)
        assert (offsets(result), result.next_offset, result.high_watermark) == ([0, 1], 2, 2)
        assert await fetch(node, 0) == result
        assert offsets(await fetch(node, 1)) == [1]
        assert offsets(await fetch(node, 0, bytes_max=1)) == [0]
        assert (await fetch(node, 2)).data == b""
        assert await node.readers.reader("t", 0).bounds() == (0, 2)
        assert await node.readers.reader("t", 0).offset_for_timestamp(5) == 0
        assert await node.readers.reader("t", 0).offset_for_timestamp(6) == 2
    assert (nodes[0].streams, nodes[1].streams) == (0, 1)


async def test_the_end_of_the_log_is_that_of_what_is_not_committed_yet(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalLog, "high_watermark", property(lambda log: Offset(1)))
    for node in nodes:
        reader = node.readers.reader("t", 0)
        assert (await reader.bounds(), await reader.log_end()) == ((0, 1), 2)


async def test_the_end_of_the_log_is_the_high_watermark_of_an_older_leader(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalLog, "log_end_offset", property(lambda log: Offset(0)))
    assert await nodes[1].readers.reader("t", 0).log_end() == 2


async def test_who_waits_gets_what_is_appended(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    waiting = [asyncio.create_task(fetch(second, 2, wait_ms=60_000)) for _ in range(3)]
    await asyncio.sleep(0.1)
    await first.append(b"c")
    async with asyncio.timeout(10):
        assert [offsets(each) for each in await asyncio.gather(*waiting)] == [[2]] * 3


async def test_a_wait_ends_when_it_is_over(nodes: tuple[Node, Node]) -> None:
    before_s = asyncio.get_running_loop().time()
    result = await fetch(nodes[1], 2, wait_ms=200)
    assert (result.data, result.next_offset) == (b"", 2)
    assert 0.19 <= asyncio.get_running_loop().time() - before_s < 3


async def test_a_reader_that_waits_goes_on_at_the_new_leader(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    """Though the old one answers as before, and would for a minute."""
    first, second = nodes
    third = Node("n3", tmp_path / "n3", first.network)
    await third.storage.start()
    await third.obey(topic("n3", 2))
    for value in (b"a", b"b", b"c"):
        await third.append(value)
    waiting = asyncio.create_task(fetch(second, 2, wait_ms=60_000))
    await asyncio.sleep(0.1)
    await second.obey(topic("n3", 2))
    async with asyncio.timeout(10):
        assert offsets(await waiting) == [2]
    await third.stop()


async def test_a_lost_link_is_no_loss(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    waiting = asyncio.create_task(fetch(second, 2, wait_ms=60_000))
    await asyncio.sleep(0.1)
    first.cut()
    await asyncio.sleep(0.1)
    first.reachable = True
    await first.append(b"c")
    async with asyncio.timeout(10):
        assert offsets(await waiting) == [2]


async def test_without_a_leader_it_says_so_after_a_while(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "PATIENCE_S", 0.2)
    _, second = nodes
    await second.obey(topic(None, 2))
    with pytest.raises(Unavailable, match=r"t/0 can't be read now: .* has no leader now"):
        await fetch(second, 0)
    await second.obey(topic("n1", 3))
    nodes[0].cut()
    with pytest.raises(Unavailable, match="node n1 can't be reached"):
        await fetch(second, 0)


async def test_a_node_that_does_not_lead_refuses(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "PATIENCE_S", 0.1)
    first, second = nodes
    await second.obey(topic("n1", 2))
    await first.obey(topic("n9", 3))
    with pytest.raises(Unavailable, match="is led by n9"):
        await fetch(second, 0)


@pytest.mark.parametrize("offset", [3, 1000])
async def test_what_was_lost_is_out_of_range(nodes: tuple[Node, Node], offset: int) -> None:
    for node in nodes:
        with pytest.raises(OffsetOutOfRange, match=r"not within 0\.\.2"):
            await fetch(node, offset, wait_ms=100)


async def test_deleted_records_are_out_of_range(nodes: tuple[Node, Node]) -> None:
    await nodes[0].partitions.log("t", 0).delete_records(Offset(1))
    for node in nodes:
        with pytest.raises(OffsetOutOfRange):
            await fetch(node, 0)
        assert await node.readers.reader("t", 0).bounds() == (1, 2)


async def test_another_topic_of_the_name_is_not_read(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    reader = second.readers.reader("t", 0)
    for node in nodes:
        await node.obey(topic("n1", 1, OWN_ID))
    with pytest.raises(UnknownTopic, match="another one has its name"):
        await reader.fetch(Offset(0), bytes_max=1)
    with pytest.raises(UnknownPartition):
        second.readers.reader("t", 1)
    with pytest.raises(UnknownTopic):
        second.readers.reader("u", 0)
    assert (await fetch(first, 0)).high_watermark == 0


async def test_replicas_in_sync_are_read_where_they_are(tmp_path: Path) -> None:
    """What the replica does not have yet is asked of the leader; a replica that is not in sync
    is not asked at all."""
    network: dict[str, Node] = {}
    follower, leader = Node("n2", tmp_path / "n2", network), Node("n1", tmp_path / "n1", network)
    held = Leadership("n1", 1, ("n1", "n2"), ("n1", "n2"), 1, (), 1)
    info = TopicInfo("t", TOPIC_ID, 1, TopicConfig(), 1, (held,))
    await leader.storage.start()
    await leader.obey(topic("n1"))
    for value in (b"a", b"b", b"c"):
        await leader.append(value)
    await follower.storage.start()
    await follower.obey(info)
    log: Any = follower.partitions.replica("t", 0)
    log.follow(1)
    data = (await leader.partitions.log("t", 0).fetch(Offset(0), bytes_max=1)).data
    await log.append_replica(data)
    log.commit_to(Offset(1))
    assert offsets(await fetch(follower, 0)) == [0]
    assert follower.streams == 0
    assert offsets(await fetch(follower, 2)) == [2]
    assert follower.streams == 1
    out = Leadership("n1", 1, ("n1", "n2"), ("n1",), 2, (), 1)
    await follower.obey(TopicInfo("t", TOPIC_ID, 1, TopicConfig(), 2, (out,)))
    assert offsets(await fetch(follower, 0)) == [0, 1, 2]
    await follower.stop()
    await leader.stop()


async def test_links_without_requests_are_closed(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_link, "IDLE_S", 0.1)
    _, second = nodes
    await fetch(second, 0)
    waiting = asyncio.create_task(fetch(second, 2, wait_ms=500))
    await asyncio.sleep(0.3)
    await waiting
    assert second.streams == 1
    await asyncio.sleep(0.3)
    assert not second.readers.links._links
    assert offsets(await fetch(second, 1)) == [1]


async def test_a_caller_that_asks_for_more_is_not_read_from(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_service, "_OPEN_MAX", 10)
    first, _ = nodes
    mine, theirs = Pipe(Cable()), Pipe(Cable())
    mine.other, theirs.other = theirs, mine
    serving = asyncio.create_task(first.service.serve(Peer("n2", 1), theirs))
    for number in range(1, 31):
        asked = FetchRequest(number, TOPIC_ID, 0, Wants.BATCHES, 2, 1, 60_000)
        await mine.write(encode_requests([asked]))
    await asyncio.sleep(0.1)
    assert theirs.inbox.qsize() == 30 - 11
    await first.append(b"c")
    async with asyncio.timeout(10):
        answered = set()
        while len(answered) < 30:
            data = await mine.read()
            if data:
                answer = decode_answer(data)
                assert isinstance(answer.outcome, FetchResult)
                answered.add(answer.id)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("moved", [False, True])
async def test_a_reader_ends_though_its_request_fails_as_it_is_ended(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    _, second = nodes
    asked = asyncio.Event()

    class Link:
        async def ask(self, request: object, connect_s: float) -> FetchResult:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise Unavailable("the link is lost in this moment") from None
            raise AssertionError

    monkeypatch.setattr(second.readers.links, "to", lambda _: Link())
    reading = asyncio.create_task(fetch(second, 0))
    await asked.wait()
    if moved:
        second.readers.changed("t", topic("n2"))
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=3)
    assert done and reading.cancelled()


BATCH = encode(Columns([b"a", b"b"]), now_ms=1)


def test_messages_are_read_as_they_were_written() -> None:
    requests = [
        FetchRequest(1, TOPIC_ID, 3, Wants.BATCHES, 2**62, 2**31, 500),
        FetchRequest(2, OWN_ID, 0, Wants.TIME, timestamp_ms=2**41),
    ]
    assert decode_requests(encode_requests(requests)) == requests
    for answer in (
        FetchAnswer(7, FetchResult(BATCH, Offset(2), Offset(9), Offset(0))),
        FetchAnswer(8, FetchResult(b"", Offset(2), Offset(9), Offset(1))),
    ):
        assert decode_answer(b"".join(answer_parts(answer))) == answer
    refused = decode_answer(b"".join(answer_parts(
        FetchAnswer(9, NotLeader("elsewhere", leader="n2", epoch=4))
    ))).outcome  # fmt: skip
    assert isinstance(refused, NotLeader)
    assert (str(refused), refused.leader, refused.epoch) == ("elsewhere", "n2", 4)


@pytest.mark.parametrize("result", [
    FetchResult(BATCH[:-1], Offset(2), Offset(2), Offset(0)),
    FetchResult(BATCH, Offset(1), Offset(2), Offset(0)),
], ids=["cut", "beyond"])  # fmt: skip
def test_answers_that_are_no_whole_batches_are_refused(result: FetchResult) -> None:
    with pytest.raises(BadFrame):
        decode_answer(b"".join(answer_parts(FetchAnswer(1, result))))
