"""Goal: a damaged segment is put together again from another node, which gives what is committed
to nodes that have a replica, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import CorruptLog, InvalidRequest, LakeMQError, Unavailable
from lakemq.broker_core.api.records.batch import encode, read_header, split
from lakemq.broker_core.api.types import Acks, Columns, Leadership, Offset, TopicConfig, TopicInfo
from lakemq.broker_core.cluster import segment_repair
from lakemq.broker_core.cluster.identity import Peer, PeerIdentity
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.segment_repair import CommittedReads, SegmentRepairs
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.configuration.settings import ClusterSettings
from lakemq.broker_core.partitions import Partitions
from lakemq.broker_core.replication.types import Place
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from tests.support.replication.nodes import TestCluster, assignments_of

TOPIC_ID = "0a" * 16
PLACE = Place(TOPIC_ID, 0)
HELD = Leadership("n1", 1, ("n1", "n2", "n3"), ("n1", "n2"), 1, (), 1)
RECORDS = 20


class Node:
    """A broker's partitions over a journal of its own."""

    def __init__(self, name: str, folder: Path, network: dict[str, Node]) -> None:
        self.name = name
        self.network = network
        # The scrub would find the damage first.
        settings = JournalSettings(free_min_bytes=0, tail_max_bytes=0, scrub_max_bytes_per_s=0)
        self.storage = JournalStorage(folder, settings)
        self.cluster = TestCluster([name, "other"])
        self.partitions = Partitions(name, self.storage, assignments_of(self.cluster.nodes[name]))
        identity = PeerIdentity(name, "c1", lambda: 1)
        wire: Any = SimpleNamespace(identity=identity, peers=self)
        self.repairs = SegmentRepairs(wire, self.partitions, ClusterSettings())
        self.partitions.repair = self.repairs.repair
        self.reads = CommittedReads(self.partitions)
        self.answer: Any = self.reads.answer
        network[name] = self

    async def start(self) -> None:
        await self.storage.start()
        config = TopicConfig(segment_max_bytes=500)
        await self.partitions.assign(TopicInfo("t", TOPIC_ID, 1, config, 1, (HELD,)))
        self.log: Any = self.partitions.replica("t", 0)

    async def call(self, node: str, method: str, request: bytes, timeout_s: float) -> bytes:
        """As `Peers.call`."""
        if node not in self.network:
            raise Unavailable(f"{node} is not there")
        assert method == "Read"
        return bytes(await self.network[node].answer(Peer(self.name, 1), request))

    async def stop(self) -> None:
        await self.repairs.stop()
        await self.cluster.stop()
        await self.storage.stop()

    def damage(self, segment: int = 0, position: int = 50) -> None:
        folder = self.log.folder
        path = folder.path / folder.manifest.segments[segment].log_name
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)

    async def read(self) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < RECORDS:
            result = await self.log.fetch(Offset(len(offsets)), bytes_max=1 << 20)
            offsets += [header.base_offset for _, header in split(result.data)]
        return offsets


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """n1 leads, n2 follows; both have the same committed records. n3 is down."""
    network: dict[str, Node] = {}
    first, second = (Node(name, tmp_path / name, network) for name in ("n1", "n2"))
    await first.start()
    await second.start()
    first.log.lead(1, alone=True)
    second.log.follow(1)
    for number in range(RECORDS):
        batch = encode(Columns([b"value %d" % number]), now_ms=1)
        await first.log.append(batch, read_header(batch), Acks.LEADER)
        at = Offset(number)
        data = await first.log.read_replica(at, 1 << 20)
        second.log.roll_at(first.log.segment_start(at))
        await second.log.append_replica(data)
    second.log.commit_to(Offset(RECORDS))
    assert len(first.log.folder.manifest.segments) > 2
    yield first, second
    await first.stop()
    await second.stop()


async def test_readers_of_a_damaged_leader_get_every_record(nodes: tuple[Node, Node]) -> None:
    first, _ = nodes
    folder = first.log.folder
    path = folder.path / folder.manifest.segments[0].log_name
    whole = path.read_bytes()
    first.damage()
    first.damage(1)
    assert await first.read() == list(range(RECORDS))
    assert (folder.path / folder.manifest.segments[0].log_name).read_bytes() == whole
    assert first.storage.counters.repaired_segments == 2
    assert first.storage.damaged_segments() == 0


async def test_damage_that_no_reader_meets_is_repaired(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = nodes
    monkeypatch.setattr(segment_repair, "LOOK_S", 0.01)
    second.damage()
    second.repairs.start()
    with pytest.raises(CorruptLog):  # A replica that is asked does not ask others in its turn.
        await second.log.read_replica(Offset(0), 1000)
    async with asyncio.timeout(10):
        while second.storage.counters.repaired_segments == 0:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)
    assert await second.read() == list(range(RECORDS))


async def test_what_no_replica_has_whole_stays_refused_and_is_said_once(
    nodes: tuple[Node, Node], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    first.damage()
    second.damage()
    for _ in range(3):
        monkeypatch.setattr(segment_repair, "RETRY_S", 0.0)
        with pytest.raises(CorruptLog, match=r"offsets 0\.\.0 are damaged"):
            await first.read()
    said = [each.getMessage() for each in caplog.records if "stays damaged" in each.message]
    assert len(said) == 1
    assert "no replica gives offsets 0..0: n2: " in said[0] and "n3 is not there" in said[0]
    assert first.storage.damaged_segments() == 1
    # While it has just failed, readers are refused at once, and peers are left alone.
    monkeypatch.setattr(segment_repair, "RETRY_S", 60.0)
    with pytest.raises(CorruptLog):
        await first.read()
    second.answer = None
    with pytest.raises(CorruptLog):
        await first.read()


async def test_only_replicas_are_given_what_is_committed(nodes: tuple[Node, Node]) -> None:
    first, second = nodes

    async def ask(
        node: str, offset: int, end: int, topic_id: str = TOPIC_ID, number: int = 0
    ) -> Any:
        request = pb.ReadRequest(
            topic_id=bytes.fromhex(topic_id), partition=number, offset=offset, end=end
        )
        answer = await first.reads.answer(Peer(node, 1), request.SerializeToString())
        return pb.ReadResponse.FromString(answer)

    answer = await ask("n3", 2, 4)
    assert [header.base_offset for _, header in split(answer.batches)] == [2, 3]
    assert answer.next_offset == 4
    for asked, error in (
        (("stranger", 2, 4), InvalidRequest),
        (("n2", 2, RECORDS + 1), Unavailable),
        (("n2", -1, 2), Unavailable),
        (("n2", 4, 4), Unavailable),
        (("n2", 0, 1, "0b" * 16), Unavailable),
        (("n2", 0, 1, TOPIC_ID, 5), Unavailable),
    ):
        with pytest.raises(error):
            await ask(*asked)  # type: ignore[arg-type]
    for bad in (b"\xff" * 20, b"x" * 2000):
        with pytest.raises(BadFrame):
            await first.reads.answer(Peer("n2", 1), bad)
    # Durable, but not committed: another leader may have it cut.
    second.log.follow(2)
    extra = encode(Columns([b"more"]), now_ms=1, base_offset=RECORDS, leader_epoch=1)
    await second.log.append_replica(extra)
    with pytest.raises(Unavailable, match=r"t/0 has offsets 0\.\.19 here"):
        request = pb.ReadRequest(
            topic_id=bytes.fromhex(TOPIC_ID), offset=RECORDS, end=RECORDS + 1
        ).SerializeToString()
        await second.reads.answer(Peer("n1", 1), request)


async def test_an_answer_is_not_believed_beyond_what_was_asked(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.damage()
    other = (await second.log.fetch(Offset(1), bytes_max=1)).data
    good = (await second.log.fetch(Offset(0), bytes_max=1)).data
    torn = bytearray(good)
    torn[-1] ^= 1
    for batches, end in ((other, 1), (bytes(torn), 1), (good, 0), (good, 2), (b"", 1), (b"?", 1)):

        async def answer(
            peer: Peer, request: bytes, batches: bytes = batches, end: int = end
        ) -> bytes:
            return pb.ReadResponse(batches=batches, next_offset=end).SerializeToString()

        second.answer = answer
        first.repairs._not_before_s.clear()
        with pytest.raises(LakeMQError):
            await first.read()
        assert first.storage.counters.repaired_segments == 0
    second.answer = second.reads.answer
    first.repairs._not_before_s.clear()
    assert await first.read() == list(range(RECORDS))
