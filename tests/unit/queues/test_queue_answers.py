"""Goal: what a consumer settles is answered when it is on disk, and not a moment before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from lakemq.broker_core.api.errors import Unavailable
from lakemq.broker_core.api.queues.types import QueueDelivery, QueueSettings, Settlement
from lakemq.broker_core.queues.consumer import QueueConsumer
from lakemq.broker_core.queues.partition_runtime import QueuePartitionRuntime
from lakemq.broker_core.queues.partition_state import QueuePartitionState, fresh
from lakemq.broker_core.queues.snapshot import Snapshot
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.queues.service import _settle, response_of


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

    def settled(*_: Any) -> Any:
        partition.state.settle(1, 0, Settlement.ACCEPT, 1)
        return [], partition.persisted()

    queue: Any = SimpleNamespace(settle=settled)
    consumer = QueueConsumer(1, 10, queue)
    request = pb.QueueRequest(
        settle=pb.SettleRecords(request_id=7, ranges=[pb.OffsetRange(first=0, last=0)])
    )
    room = asyncio.Semaphore(5)
    await room.acquire()
    _settle(request, consumer, room)
    answer = asyncio.create_task(consumer.next())
    await turns()
    assert not answer.done() and disk.written == []
    disk.goes_on.set()
    said = await answer
    assert response_of(said).settled.request_id == 7
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
    monkeypatch.setattr("lakemq.broker_core.queues.partition_runtime._RETRY_FIRST_MS", 1)
    disk = Disk()
    disk.failures = 2
    disk.goes_on.set()
    partition = partition_on(disk)
    partition.state.settle(1, 0, Settlement.ACCEPT, 1)
    await asyncio.wait_for(partition.persisted(), 5)
    assert [each.start for each in disk.written] == [1]


async def test_the_next_delivery_is_prepared_when_the_one_before_was_taken() -> None:
    woken: list[int] = []
    queue: Any = SimpleNamespace(wake=lambda: woken.append(1))
    consumer = QueueConsumer(1, 10, queue)
    delivery = QueueDelivery(0, b"", [1], 5_000)
    consumer.send(delivery)
    assert not consumer.takes_deliveries
    assert await consumer.next() is delivery
    assert consumer.takes_deliveries and woken == []
    consumer.send("answer")
    assert await consumer.next() == "answer" and woken == [1]
    consumer.end()
    assert await consumer.next() is None and woken == [1]
