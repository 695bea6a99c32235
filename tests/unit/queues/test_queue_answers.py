"""Goal: what a consumer settles is answered when it is on disk, and not a moment before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from lakemq.broker_core.api.errors import Unavailable
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.queues.consumer import QueueConsumer
from lakemq.plugins.native.queues.partition_runtime import QueuePartitionRuntime
from lakemq.plugins.native.queues.partition_state import QueuePartitionState, Settlement, fresh
from lakemq.plugins.native.queues.service import _settle
from lakemq.plugins.native.queues.settings import QueueSettings
from lakemq.plugins.native.queues.snapshot import Snapshot


class Disk:
    """Keeps snapshots when it is told to."""

    def __init__(self) -> None:
        self.written: list[Snapshot] = []
        self.failures = 0
        self.goes_on = asyncio.Event()

    async def keep(self, snapshot: Snapshot) -> None:
        await self.goes_on.wait()
        if self.failures:
            self.failures -= 1
            raise Unavailable("the disk is busy")
        self.written.append(snapshot)


def partition_on(disk: Disk) -> QueuePartitionRuntime:
    state = QueuePartitionState(QueueSettings(), fresh("ab" * 16, 0))
    state.load(range(10), None, 10)
    state.acquire(1, 10, 0)
    return QueuePartitionRuntime(0, state, SimpleNamespace(), disk.keep, topic="t", window_max=100)  # type: ignore[arg-type]  # no log is read


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nothing_is_answered_before_it_is_written() -> None:
    disk = Disk()
    partition = partition_on(disk)
    consumer = QueueConsumer(1, 10)

    def settled(_: QueueConsumer, __: pb.SettleRecords) -> Any:
        partition.state.settle(1, 0, Settlement.ACCEPT, 1)
        return [], partition.persisted()

    queue: Any = SimpleNamespace(settle=settled)
    request = pb.QueueRequest(
        settle=pb.SettleRecords(request_id=7, ranges=[pb.OffsetRange(first=0, last=0)])
    )
    room = asyncio.Semaphore(5)
    await room.acquire()
    _settle(request, queue, consumer, room)
    answer = asyncio.create_task(consumer.next())
    await turns()
    assert not answer.done() and disk.written == []
    disk.goes_on.set()
    said = await answer
    assert said is not None and said.settled.request_id == 7
    assert [each.start for each in disk.written] == [1]


async def test_what_is_settled_during_a_write_is_in_the_next() -> None:
    disk = Disk()
    partition = partition_on(disk)
    partition.state.settle(1, 0, Settlement.ACCEPT, 1)
    first = partition.persisted()
    await turns()
    partition.state.settle(1, 1, Settlement.ACCEPT, 1)
    second, third = partition.persisted(), partition.persisted()
    disk.goes_on.set()
    await asyncio.gather(first, second, third)
    assert [each.start for each in disk.written] == [1, 2]


async def test_a_write_that_fails_is_tried_again_and_answered_late(monkeypatch: Any) -> None:
    monkeypatch.setattr("lakemq.plugins.native.queues.partition_runtime._RETRY_FIRST_MS", 1)
    disk = Disk()
    disk.failures = 2
    disk.goes_on.set()
    partition = partition_on(disk)
    partition.state.settle(1, 0, Settlement.ACCEPT, 1)
    await asyncio.wait_for(partition.persisted(), 5)
    assert [each.start for each in disk.written] == [1]
