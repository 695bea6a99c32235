"""Goal: a node tells where its replicas end, and is believed about those alone that it was asked
for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lakemq.broker_core.api.records.batch import encode, read_header
from lakemq.broker_core.api.types import Acks, Columns, Leadership, TopicConfig, TopicInfo
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.cluster.proto import peer_pb2 as pb
from lakemq.broker_core.cluster.replica_report import (
    REPLICAS_MAX,
    ReplicaReport,
    ReplicaReports,
    ask_replicas,
)
from lakemq.broker_core.cluster.wire import BadFrame
from lakemq.broker_core.partitions import Partitions
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from tests.support.replication.nodes import TestCluster, assignments_of

TOPIC_ID, OTHER_ID = "0a" * 16, "0b" * 16
CALLER = Peer("caller", 1)


class Answering:
    """Stands for the connection to one node."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def call(self, node: str, method: str, request: bytes) -> bytes:
        assert (node, method) == ("n2", "Report")
        return bytes(await self._answer(CALLER, request))


@pytest.fixture
async def reports(tmp_path: Path) -> AsyncIterator[ReplicaReports]:
    storage = JournalStorage(tmp_path, JournalSettings(free_min_bytes=0))
    await storage.start()
    nodes = TestCluster(["n1", "n2"])
    leaders = (Leadership("n2", 1, ("n2",)), Leadership("n1", 1, ("n1",)))
    partitions = Partitions("n2", storage, assignments_of(nodes.nodes["n2"]))
    await partitions.assign(TopicInfo("t", TOPIC_ID, 2, TopicConfig(), 1, leaders))
    log = partitions.log("t", 0)
    batch = encode(Columns([b"a", b"b"]), now_ms=1)
    await log.append(batch, read_header(batch), Acks.LEADER)
    yield ReplicaReports(partitions)
    await nodes.stop()
    await storage.stop()


async def asked(answer: Any, replicas: Sequence[tuple[str, int]]) -> list[ReplicaReport]:
    return await ask_replicas(Answering(answer), "n2", replicas)  # type: ignore[arg-type]


async def test_a_node_reports_the_replicas_that_it_holds(reports: ReplicaReports) -> None:
    answer = reports.answer
    places = [(TOPIC_ID, 0), (TOPIC_ID, 1), (TOPIC_ID, 7), (OTHER_ID, 0)]
    assert await asked(answer, places) == [ReplicaReport(TOPIC_ID, 0, 1, 2, 2, 0)]


@pytest.mark.parametrize(("message", "reason"), [
    (pb.ReplicaReport(topic_id=b"\x0b" * 16), "not asked for"),
    (pb.ReplicaReport(topic_id=b"\x0a" * 16, partition=1), "not asked for"),
    (pb.ReplicaReport(topic_id=b"\x0a" * 16, durable_end=4, high_watermark=5), "no sense"),
    (pb.ReplicaReport(topic_id=b"\x0a" * 16, last_epoch=-2), "no sense"),
    (pb.ReplicaReport(topic_id=b"\x0a" * 16, log_start=-1), "no sense"),
])  # fmt: skip
async def test_other_reports_are_refused(message: pb.ReplicaReport, reason: str) -> None:
    async def answer(peer: Peer, request: bytes) -> bytes:
        return pb.ReportResponse(replicas=[message]).SerializeToString()

    with pytest.raises(BadFrame, match=reason):
        await asked(answer, [(TOPIC_ID, 0)])


async def test_a_replica_is_reported_once() -> None:
    async def answer(peer: Peer, request: bytes) -> bytes:
        one = pb.ReplicaReport(topic_id=b"\x0a" * 16)
        return pb.ReportResponse(replicas=[one, one]).SerializeToString()

    with pytest.raises(BadFrame, match="not asked for"):
        await asked(answer, [(TOPIC_ID, 0)])


async def test_large_and_broken_requests_are_refused(reports: ReplicaReports) -> None:
    answer = reports.answer
    with pytest.raises(BadFrame, match="131073 bytes"):
        await answer(CALLER, bytes(128 * 1024 + 1))
    with pytest.raises(BadFrame, match="not a ReportRequest"):
        await answer(CALLER, b"\xff")
    many = pb.ReportRequest(replicas=[pb.ReplicaName()] * (REPLICAS_MAX + 1))
    with pytest.raises(BadFrame, match="1001 replicas"):
        await answer(CALLER, many.SerializeToString())
