"""Goal: wherever schedules are kept by then, a scheduled record appears once, and one whose
cancelling was answered never does.

Method: the real schedulers of three nodes over simulated partitions whose leaders move and die, in
virtual time. A client asks again under the same id, at any node, until it is answered. Rules are
taken away, one at a time, and runs break.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from lakemq.broker_core.api.errors import LakeMQError, UnknownSchedule
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.scheduling.schedules import ScheduleAsked
from lakemq.broker_core.api.state.internal_topics import SCHEDULES
from lakemq.broker_core.api.types import ANONYMOUS, Columns, TopicInfo
from lakemq.broker_core.cluster.identity import Peer
from lakemq.broker_core.configuration.settings import ScheduleSettings
from lakemq.broker_core.scheduling import delivering
from lakemq.broker_core.scheduling.delivering import Deliveries
from lakemq.broker_core.scheduling.log import ScheduleLog, StoredSchedules
from lakemq.broker_core.scheduling.scheduler import Scheduler
from lakemq.broker_core.transactions import owners
from lakemq.broker_core.transactions.targets import AppendedService
from tests.support.cluster.simulated_brokers import SimulatedBroker, SimulatedLog, World
from tests.support.seeds import seeds
from tests.support.virtual_time import run_virtually

NODES = ("a", "b", "c")
RECORDS = 60
TARGETS = 3


class Led:
    """What a node leads, as `AppendedService` asks for it."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker

    def find_id(self, topic_id: str) -> TopicInfo | None:
        return next((each for each in self._broker.topics() if each.topic_id == topic_id), None)

    def log(self, name: str, number: int) -> SimulatedLog:
        return self._broker.partition(name, number)


class Run:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        for pauses in (owners._rng, delivering._rng):
            pauses.seed(seed)
        self.world = World(self.dice, NODES)
        self.nodes: dict[str, Scheduler] = {}
        self.asked: set[int] = set()
        self.cancelled: set[int] = set()
        self.maybe_cancelled: set[int] = set()

    async def go(self) -> None:
        self.world.create("t", TARGETS)
        for name in NODES:
            await self.start(name)
        client = asyncio.create_task(self.client())
        await self.harm()
        async with asyncio.timeout(240):
            await client
            while any(node.counters.waiting for node in self.nodes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        await asyncio.sleep(10)  # what would appear again does by then
        for node in self.nodes.values():
            await node.stop()
        await self.world.stop()
        self.check()

    def check(self) -> None:
        counted = Counter(int(value) for _, value in self.world.records("t"))
        assert [each for each, count in counted.items() if count > 1] == [], "appears again"
        assert not self.cancelled & counted.keys(), "appears, and was cancelled"
        assert self.asked - counted.keys() <= self.maybe_cancelled, "does not appear"
        for number, value in self.world.records("t"):
            assert number == int(value) % TARGETS

    async def start(self, name: str) -> None:
        broker: Any = SimulatedBroker(self.world, name)
        clock = asyncio.get_running_loop().time
        self.nodes[name] = Scheduler(
            broker, ScheduleSettings(), lambda: int(clock() * 1000), call=self.call
        )
        await self.nodes[name].start()

    async def call(self, node: str, method: str, request: bytes, timeout_s: float) -> bytes:
        await asyncio.sleep(self.dice.uniform(0, 0.02))
        led: Any = Led(self.world.brokers[node])
        return await AppendedService(led).answer(Peer("x", 1), request)

    async def harm(self) -> None:
        for _ in range(25):
            await asyncio.sleep(self.dice.uniform(0, 1.2))
            name = self.dice.choice([SCHEDULES, SCHEDULES, "t"])
            if self.dice.random() < 0.2:
                await self.kill(self.dice.choice(NODES))
            elif name in self.world.topics:
                for number in range(self.world.topics[name].partitions):
                    self.world.move(name, number, self.dice.choice(NODES))

    async def kill(self, name: str) -> None:
        self.world.kill(name)
        await self.nodes.pop(name).stop()
        await asyncio.sleep(self.dice.uniform(0, 1))
        await self.start(name)

    async def client(self) -> None:
        for number in range(RECORDS):
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            due_ms = max(0, now_ms + self.dice.randint(-500, 5000))
            asked = ScheduleAsked(
                f"id-{number}", "t", number % TARGETS, encode(Columns([b"%d" % number])), due_ms
            )
            while number not in self.asked:
                node = self.nodes.get(self.dice.choice(NODES))
                with suppress(LakeMQError):
                    if node is not None:
                        await node.schedule(asked, principal=ANONYMOUS)
                        self.asked.add(number)
                await asyncio.sleep(self.dice.uniform(0, 0.1))
            if self.dice.random() < 0.3:
                await self.cancel(self.dice.choice(sorted(self.asked)))
            await asyncio.sleep(self.dice.uniform(0, 0.3))

    async def cancel(self, number: int) -> None:
        self.maybe_cancelled.add(number)
        for node in list(self.nodes.values()):
            try:
                await node.cancel(f"id-{number}", principal=ANONYMOUS)
            except (UnknownSchedule, LakeMQError):
                continue  # too late, or elsewhere, or not answered
            self.cancelled.add(number)


@pytest.mark.parametrize("seed", seeds(30))
def test_what_was_scheduled_appears_once(seed: int) -> None:
    run_virtually(Run(seed).go())


def goes_on(scheduler: Scheduler, partition: int) -> None:
    """As `Scheduler.drop`, but what delivers is not ended."""
    scheduler._deliveries.pop(partition, None)
    scheduler._queue.drop(partition)
    scheduler._count()


async def undecided(log: ScheduleLog, partition: int, end: int) -> StoredSchedules:
    found = await LOAD(log, partition, end)
    return StoredSchedules(found.schedules)


def none(deliveries: Deliveries) -> set[str]:
    return set()


LOAD = ScheduleLog.load
RULES: dict[str, tuple[Any, str, Any]] = {
    "another node ends what delivers": (Scheduler, "drop", goes_on),
    "a new one knows what was decided": (ScheduleLog, "load", undecided),
    "what is decided is not delivered again": (Deliveries, "_decided", none),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.replace(" ", "-"))
def test_every_rule_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*RULES[rule])
    with pytest.raises(AssertionError):
        for seed in range(60):
            run_virtually(Run(seed).go())
