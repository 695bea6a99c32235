"""Goal: a leader takes of other nodes what a producer could have written to that leadership, and
says of all else why not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakemq.broker_core.api.records.batch import (
    CONTROL,
    HEADER_BYTES,
    SPARSE,
    encode,
    pack_header,
    read_header,
)
from lakemq.broker_core.api.types import (
    Acks,
    AppendResult,
    Columns,
    Leadership,
    TopicConfig,
    TopicInfo,
)
from lakemq.broker_core.cluster.append_frames import AppendRequest, decode_answers, request_bytes
from lakemq.broker_core.cluster.append_service import AppendService
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.partitions import Partitions
from lakemq.plugins.journal.settings import JournalSettings
from lakemq.plugins.journal.storage import JournalStorage
from tests.support.replication.nodes import TestCluster, assignments_of

TOPIC, INTERNAL = "0a" * 16, "0b" * 16
BATCH = encode(Columns([b"a", b"b"]), now_ms=1)


def marked(attributes: int) -> bytes:
    header = read_header(BATCH)
    return pack_header(header._replace(attributes=attributes)) + BATCH[HEADER_BYTES:]


class Called:
    """A stream of one request. Implements `ByteStream`."""

    def __init__(self, request: AppendRequest) -> None:
        self.requests = [b"".join(request_bytes(request))]
        self.answered: asyncio.Future[AppendResult | Exception] = asyncio.Future()

    async def read(self) -> bytes | None:
        if not self.requests:
            await self.answered
            return None
        return self.requests.pop()

    async def write(self, data: bytes) -> None:
        for each in decode_answers(data):
            assert each.id == 7
            self.answered.set_result(each.outcome)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[AppendService]:
    storage = JournalStorage(tmp_path, JournalSettings(free_min_bytes=0))
    await storage.start()
    nodes = TestCluster(["n1", "n2"])
    partitions = Partitions("n1", storage, assignments_of(nodes.nodes["n1"]))
    leaders = (Leadership("n1", 3, ("n1",)), Leadership("n2", 1, ("n2",)))
    await partitions.assign(TopicInfo("t", TOPIC, 2, TopicConfig(), 1, leaders))
    await partitions.assign(TopicInfo("__state", INTERNAL, 1, TopicConfig(), 2, leaders[:1]))
    yield AppendService(partitions)
    await nodes.stop()
    await storage.stop()


GOOD = AppendRequest(7, TOPIC, 0, 3, Acks.LEADER, BATCH)


async def asked(service: AppendService, request: AppendRequest) -> AppendResult | Exception:
    stream = Called(request)
    async with asyncio.timeout(20):
        await service.serve(Peer("n2", 1), stream)
    return stream.answered.result()


async def test_a_batch_for_what_is_led_here_is_stored(service: AppendService) -> None:
    outcome = await asked(service, GOOD)
    assert isinstance(outcome, AppendResult)
    assert (outcome.base_offset, outcome.last_offset, outcome.acks) == (0, 1, Acks.LEADER)


@pytest.mark.parametrize(("request_", "code", "why"), [
    (GOOD._replace(topic_id="0c" * 16), "UNKNOWN_TOPIC", "no topic has the id"),
    (GOOD._replace(partition=2), "UNKNOWN_PARTITION", "2"),
    (GOOD._replace(partition=1, leader_epoch=1), "NOT_LEADER", "n2"),
    (GOOD._replace(leader_epoch=2), "STALE_EPOCH", ""),
    (GOOD._replace(leader_epoch=4), "STALE_EPOCH", ""),
    (GOOD._replace(leader_epoch=0), "STALE_EPOCH", "it is 3"),
    (GOOD._replace(topic_id=INTERNAL), "INVALID_REQUEST", "written by its own node only"),
    (GOOD._replace(batch=marked(CONTROL)), "INVALID_REQUEST", "neither sparse nor control"),
    (GOOD._replace(batch=marked(SPARSE)), "CORRUPT_BATCH", ""),
    (GOOD._replace(batch=BATCH[:-1] + b"?"), "CORRUPT_BATCH", ""),
    (GOOD._replace(batch=BATCH[:20]), "CORRUPT_BATCH", ""),
])  # fmt: skip
async def test_anything_else_is_refused(
    service: AppendService, request_: AppendRequest, code: str, why: str
) -> None:
    outcome = await asked(service, request_)
    assert isinstance(outcome, Exception)
    assert (getattr(outcome, "code", ""), why in str(outcome)) == (code, True)
