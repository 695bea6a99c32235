"""Goal: whatever ends between two bytes that reach the disk, a record that was scheduled appears
exactly once and not before its time, one whose cancelling was answered never does.

Method: the real scheduler over simulated disks, with full disks, a clock that jumps, and a node
that ends at a random step again and again. A client asks again under the same id until it is
answered. One seed gives one run; it is printed on failure.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress

import pytest

from lakemq.broker_core.api.errors import LakeMQError, UnknownSchedule
from lakemq.broker_core.api.records.batch import RecordBatch, encode
from lakemq.broker_core.api.scheduling.schedules import ScheduleAsked
from lakemq.broker_core.api.types import ANONYMOUS, Columns, TopicInfo
from lakemq.broker_core.configuration.settings import ScheduleSettings
from lakemq.broker_core.scheduling import delivering
from lakemq.broker_core.scheduling.scheduler import Scheduler
from lakemq.broker_core.transactions import owners
from tests.support.node.crashing_broker import Crashed, CrashingBroker, Disk
from tests.support.seeds import seeds

SEEDS = seeds(60)
TARGETS = [("a", 0), ("a", 1), ("b", 0)]
RECORDS = 40
SETTINGS = ScheduleSettings(remembered_ms=10_000)


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk()
        for name, partitions in (("a", 2), ("b", 1)):
            topic_id = name.encode().hex().rjust(32, "0")
            self.disk.topics[name] = TopicInfo(name, topic_id, partitions)
        self.clock_ms = 1_000_000
        self.times = [self.clock_ms + self.dice.randint(-100, 3000) for _ in range(RECORDS)]
        self.places = [self.dice.choice(TARGETS) for _ in range(RECORDS)]
        self.asked: set[int] = set()
        self.cancelled: set[int] = set()
        self.maybe_cancelled: set[int] = set()
        self.next = 0
        self.crashes = 0

    async def go(self) -> None:
        while self.next < RECORDS or self.crashes < 5:
            crash_at = self.dice.choice([2, 5, 8, 13, 21, 34, 55])
            last = self.crashes > 20
            broker = CrashingBroker(self.disk, self.dice, 10**9 if last else crash_at, 0.03)
            await self._life(broker, lambda _: self.next >= RECORDS)
            self.crashes += 1
        broker = CrashingBroker(self.disk, self.dice, 10**9, 0.0)
        self.clock_ms += 10_000
        await self._life(broker, lambda node: not node.counters.waiting)
        self.check()

    async def _life(self, broker: CrashingBroker, done) -> None:  # type: ignore[no-untyped-def]
        node = Scheduler(broker, SETTINGS, lambda: self.clock_ms)
        tasks = [
            asyncio.create_task(work)
            for work in (self._drive(node, done), broker.dead.wait(), self._clock(node))
        ]
        await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not broker.dead.is_set():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await node.stop()

    async def _clock(self, node: Scheduler) -> None:
        while True:
            for _ in range(self.dice.randint(1, 30)):
                await asyncio.sleep(0)
            self.clock_ms += self.dice.choice([0, 1, 10, 100, -50])
            for deliveries in node._deliveries.values():
                deliveries.wake.set()

    async def _drive(self, node: Scheduler, done) -> None:  # type: ignore[no-untyped-def]
        with suppress(Crashed):
            await node.start()
            while not done(node):
                await self._ask(node)
                if self.asked and self.dice.random() < 0.3:
                    await self._cancel(node, self.dice.choice(sorted(self.asked)))
                for _ in range(self.dice.randint(0, 20)):
                    await asyncio.sleep(0)

    async def _ask(self, node: Scheduler) -> None:
        if self.next >= RECORDS:
            return
        number = self.next
        batch = encode(Columns([b"%d" % number]))
        asked = ScheduleAsked(f"id-{number}", *self.places[number], batch, self.times[number])
        with suppress(LakeMQError):
            answer = await node.schedule(asked, principal=ANONYMOUS)
            assert answer.deliver_at_ms == self.times[number]
            self.asked.add(number)
            self.next += 1

    async def _cancel(self, node: Scheduler, number: int) -> None:
        self.maybe_cancelled.add(number)
        try:
            await node.cancel(f"id-{number}", principal=ANONYMOUS)
            self.cancelled.add(number)
        except UnknownSchedule:
            pass  # too late, or an earlier try that was not answered did it
        except LakeMQError:
            pass

    async def stay(self) -> None:
        """One life, in which much fails."""
        broker = CrashingBroker(self.disk, self.dice, 10**9, 0.2)
        await self._life(broker, lambda node: self.next >= RECORDS and not node.counters.waiting)
        self.check()

    def check(self) -> None:
        appeared: list[int] = []
        for place in TARGETS:
            for _, data in self.disk.logs.get(place, []):
                batch = RecordBatch(data)
                for value, time_ms in zip(batch.values(), batch.timestamps_ms(), strict=True):
                    number = int(value or b"")
                    assert self.places[number] == place
                    assert time_ms == self.times[number]
                    appeared.append(number)
        assert len(appeared) == len(set(appeared)), "a record appears twice"
        assert not self.cancelled & set(appeared), "a cancelled record appears"
        missing = set(range(RECORDS)) - set(appeared)
        assert missing <= self.maybe_cancelled, "a record is missing"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_PAUSE_FIRST_MS", 0)
    monkeypatch.setattr(delivering, "_PAUSE_S", 0.0)
    monkeypatch.setattr(delivering, "_PAUSE_FIRST_MS", 0)
    monkeypatch.setattr(delivering, "_LOOK_S", 0.001)


async def finish(work: Coroutine[None, None, None], seed: int) -> None:
    try:
        async with asyncio.timeout(20):
            await work
    except BaseException:
        print(f"LAKEMQ_SEED={seed} repeats this")
        raise


async def test_scheduled_records_appear_once() -> None:
    crashes = 0
    for seed in SEEDS:
        run = Run(seed)
        await finish(run.go(), seed)
        crashes += run.crashes
    assert crashes > 4 * len(SEEDS), "the nodes hardly ever crashed"


async def test_what_fails_is_tried_again_without_a_restart() -> None:
    for seed in SEEDS[:10]:
        run = Run(seed)
        await finish(run.stay(), seed)
