"""Goal: a queue whose coordinator moves, comes back and dies at any time never gives again what it
answered as settled, loses nothing, counts attempts that failed, and writes dead letters once.

Method: the real hosts of three nodes over simulated partitions whose leaders move, in virtual time.
What their consumers are given and answered is judged as that of real processes. Rules are taken
away, one at a time, and runs break.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from lakemq.broker_core.api.errors import LakeMQError
from lakemq.broker_core.api.records.batch import RecordBatch, encode, read_header
from lakemq.broker_core.api.types import ANONYMOUS, Acks, Columns
from lakemq.broker_core.queues import dead_letters, partition_runtime, queue
from lakemq.broker_core.queues.consumer import QueueConsumer
from lakemq.broker_core.queues.host import QueueHost
from lakemq.broker_core.queues.partition_runtime import QueuePartitionRuntime
from lakemq.broker_core.queues.queue import RunningQueue
from lakemq.broker_core.queues.snapshot import QUEUES_TOPIC
from lakemq.broker_core.queues.source import RecordSource
from lakemq.broker_core.queues.store import QueueStore, QueueTable
from lakemq.plugins.native.proto import queues_pb2 as pb
from lakemq.plugins.native.queues import service
from tests.support.cluster.queue_history import Given, QueueHistory, judged
from tests.support.cluster.simulated_brokers import SimulatedBroker, World
from tests.support.seeds import seeds
from tests.support.virtual_time import run_virtually

NODES = ("a", "b", "c")
RECORDS = 60
SOUR = 10
# A consumer that leaves has failed with what it holds: so often none does with one record.
SETTINGS = {"attempts_max": 6, "dead_letter": "dead", "backoff_ms": 1, "lock_ms": 5_000}


def clock_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_runtime, "now_ms", clock_ms)
    monkeypatch.setattr(queue, "now_ms", clock_ms)


class Run:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        for pauses in (partition_runtime._rng, dead_letters._rng):
            pauses.seed(seed)
        self.world = World(self.dice, NODES)
        self.hosts: dict[str, QueueHost] = {}
        self.history = QueueHistory(lambda: asyncio.get_running_loop().time())
        self.calm = False

    async def go(self) -> None:
        self.world.create("jobs", 2)
        self.world.create("dead", 1)
        for name in NODES:
            await self.start(name)
        consumers = [asyncio.create_task(self.consume()) for _ in range(3)]
        sending = asyncio.create_task(self.send())
        await self.harm()
        await sending
        self.calm = True
        try:
            async with asyncio.timeout(120):
                while not self.done():  # noqa: ASYNC110  in virtual time
                    await asyncio.sleep(0.5)
        finally:
            for task in consumers:
                task.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            for host in self.hosts.values():
                await host.stop()
            await self.world.stop()
        places = {
            (number, offset) for number in (0, 1)
            for offset in range(self.world.parts["jobs", number].end)
        }  # fmt: skip
        letters: Counter[tuple[int, int]] = Counter()
        for _, data in self.world.parts["dead", 0].stored:
            for record in RecordBatch(data).records():
                note = dict(record.headers)
                place = note["lakemq-dead-partition"], note["lakemq-dead-offset"]
                letters[int(place[0] or 0), int(place[1] or 0)] += 1
        sour = {place for place in places if place[1] % SOUR == 0}
        assert judged(self.history, places, sour, letters) == []

    def done(self) -> bool:
        """Whether the coordinator says that all is settled."""
        for host in self.hosts.values():
            for each in host.queues():
                parts = each.partitions.values()
                left = sum(part.state.backlog(part.log.high_watermark) for part in parts)
                ends = [self.world.parts["jobs", number].end for number in each.partitions]
                heard = [part.log.high_watermark for part in parts]
                if left == 0 and heard == ends:
                    return True
        return False

    async def start(self, name: str) -> None:
        broker: Any = SimulatedBroker(self.world, name)
        self.hosts[name] = QueueHost(broker)
        await self.hosts[name].start()

    async def send(self) -> None:
        for number in range(RECORDS):
            batch = encode(Columns([b"x"]), now_ms=1)
            with suppress(LakeMQError):
                log = await self.world.leader_log("jobs", number % 2)
                await log.append(batch, read_header(batch), Acks.REPLICATED)
            await asyncio.sleep(self.dice.uniform(0, 0.3))

    async def harm(self) -> None:
        for _ in range(25):
            await asyncio.sleep(self.dice.uniform(0, 1.2))
            name = self.dice.choice([QUEUES_TOPIC, QUEUES_TOPIC, "jobs", "dead"])
            if self.dice.random() < 0.2:
                await self.kill(self.dice.choice(NODES))
            elif name in self.world.topics:
                for number in range(self.world.topics[name].partitions):
                    self.world.move(name, number, self.dice.choice(NODES))

    async def kill(self, name: str) -> None:
        self.world.kill(name)
        await self.hosts.pop(name).stop()
        await asyncio.sleep(self.dice.uniform(0, 1))
        await self.start(name)

    # -- consumers

    async def consume(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0, 0.1))
            host = self.hosts.get(self.dice.choice(NODES))
            if host is None:
                continue
            with suppress(LakeMQError):
                consumer = await host.open(
                    "g", "jobs", principal=ANONYMOUS, prefetch=5, given=SETTINGS
                )
                try:
                    await self.read(consumer)
                finally:
                    consumer.close()

    async def read(self, consumer: QueueConsumer) -> None:
        asked: dict[int, tuple[Given, bool]] = {}
        room = asyncio.Semaphore(1000)
        while (told := await consumer.next()) is not None:
            said = service.response_of(told)
            if said.HasField("settled"):
                given, sour = asked.pop(said.settled.request_id)
                if not said.settled.HasField("error") and not said.settled.lost:
                    (self.history.failed if sour else self.history.settled)(given)
            if not said.HasField("delivery"):
                continue
            delivery, number = said.delivery, said.delivery.partition
            offsets = RecordBatch(delivery.batch).offsets()
            for offset, attempt in zip(offsets, delivery.attempts, strict=True):
                given = self.history.given((number, offset), attempt)
                await asyncio.sleep(self.dice.uniform(0, 0.05))
                if not self.calm and self.dice.random() < 0.03:
                    return  # it leaves with what it holds
                sour = offset % SOUR == 0
                asked[len(self.history.deliveries)] = given, sour
                settle = pb.SettleRecords(
                    request_id=len(self.history.deliveries), partition=number,
                    ranges=[pb.OffsetRange(first=offset, last=offset)],
                    settlement=pb.SETTLEMENT_RETRY if sour else pb.SETTLEMENT_ACCEPT,
                )  # fmt: skip
                await room.acquire()
                service._settle(pb.QueueRequest(settle=settle), consumer, room)


@pytest.mark.parametrize("seed", seeds(30))
def test_what_was_settled_is_never_given_again(seed: int) -> None:
    run_virtually(Run(seed).go())


def never(*given: Any) -> None:
    pass


async def nothing_held(store: QueueStore, partition: int, end: int) -> QueueTable:
    return QueueTable()


def written(partition: QueuePartitionRuntime) -> asyncio.Future[None]:
    partition.changed()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


async def rows_or_gone(source: RecordSource, offsets: Any) -> Any:
    """As `RecordSource.rows` was without the look at the high watermark."""
    found = []
    for offset in offsets:
        batches = await source.after(offset)
        row = batches[0].row(offset) if batches else None
        if row is not None:
            found.append(row)
    return found


RULES: dict[str, tuple[Any, str, Any]] = {
    "another coordinator ends what runs": (RunningQueue, "abandon", never),
    "a new one reads back what there is": (QueueStore, "load", nothing_held),
    "an older one writes nothing any more": (QueuePartitionRuntime, "abandon", never),
    "an answer waits for the disk": (QueuePartitionRuntime, "persisted", written),
    "what can't be read yet is not gone": (RecordSource, "rows", rows_or_gone),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.replace(" ", "-"))
def test_every_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*RULES[rule])
    broken = 0
    for seed in range(40):
        try:
            run_virtually(Run(seed).go())
        except (AssertionError, TimeoutError):
            broken += 1
            break
    assert broken
