"""Goal: whatever happens between two bytes that reach the disk, a commit's records appear exactly
once, all or none, in order, and what no commit names never appears.

Method: the real coordinator over simulated disks. A driver stages and commits batch after batch,
with losing attempts, time-outs, full disks, deleted space, and a node that ends at a random step
again and again; what was not flushed then is partly there. Every node goes on with what is on
disk. One seed gives one run; it is printed on failure.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from lakemq.broker_core.api.errors import (
    BatchCommitted,
    LakeMQError,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)
from lakemq.broker_core.api.records.batch import RecordBatch, encode
from lakemq.broker_core.api.transactions.types import (
    CommitOutcome,
    CommitTry,
    Effect,
    OpenedOwner,
    Owner,
    StagedBatchId,
    Winner,
)
from lakemq.broker_core.api.types import ANONYMOUS, Columns, TopicInfo
from lakemq.broker_core.configuration.settings import TransactionSettings
from lakemq.broker_core.transactions import owners
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from lakemq.broker_core.transactions.formats import FLOOR_KEY, STAGED_TOPIC, StagedKey
from lakemq.broker_core.transactions.formats import decode_record_key as decode
from lakemq.broker_core.transactions.logs import PARTITIONS
from tests.support.node.crashing_broker import Crashed, CrashingBroker, Disk
from tests.support.seeds import seeds

SEEDS = seeds(120)
TARGETS = [("a", 0), ("a", 1), ("b", 0)]
BATCHES = 6
SETTINGS = TransactionSettings(transaction_timeout_ms=1000, commit_wait_ms=60_000)


class Tally:
    """A participant: counts what takes effect, once per commit, on its own durable disk."""

    def __init__(self, durable: dict[bytes, int]) -> None:
        self.durable = durable
        self.in_force: set[bytes] = set(durable)

    def encode(self, asked: object) -> bytes:
        assert isinstance(asked, bytes)
        return asked

    async def prepare(self, commit: CommitTry, asked: bytes) -> bytes:
        assert asked not in self.durable, "the same commit is decided twice"
        self.in_force.add(asked)
        return asked

    async def undo(self, data: bytes) -> None:
        self.in_force.discard(data)

    def restore(self, data: bytes) -> None:
        self.in_force.add(data)

    async def apply(self, data: bytes) -> None:
        await asyncio.sleep(0)
        assert data in self.in_force
        self.durable[data] = self.durable.get(data, 0) + 1


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk()
        for name, partitions in (("a", 2), ("b", 1)):
            topic_id = name.encode().hex().rjust(32, "0")
            self.disk.topics[name] = TopicInfo(name, topic_id, partitions)
        self.owner = Owner("transaction", "w")
        self.clock_ms = 0
        self.tries = 0
        self.effects: dict[bytes, int] = {}
        self.committed: dict[int, list[tuple[tuple[str, int], bytes]]] = {}
        """Batch id -> (place, value) of the try that was answered, or was found committed."""
        self.asked: dict[int, list[list[tuple[tuple[str, int], bytes]]]] = {}
        """Batch id -> winners' records of all tries whose commit was sent."""
        self.crashes = 0

    async def go(self) -> None:
        batch_id = 0
        while batch_id < BATCHES:
            last = self.crashes >= 25
            crash_at = 10**9 if last else self.dice.choice([1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
            crash_at = max(1, crash_at + self.dice.randint(-1, 1))
            broker = CrashingBroker(self.disk, self.dice, crash_at, 0.0 if last else 0.03)
            batch_id = await self._life(broker, batch_id)
            self.crashes += 1
        broker = CrashingBroker(self.disk, self.dice, 10**9, 0.0)
        await self._life(broker, BATCHES)
        self.clock_ms += 10_000
        await self._at_rest(broker)
        self.check()

    async def _at_rest(self, broker: CrashingBroker) -> None:
        """What nobody needs any more takes no space."""
        coordinator = TransactionCoordinator(
            broker, SETTINGS, now_ms=lambda: self.clock_ms, steady_ms=lambda: self.clock_ms
        )
        await coordinator.start()
        for _ in range(2):  # not at the first look: more may be dropped soon
            await coordinator.free()
        for number in range(PARTITIONS):
            log = broker.partition(STAGED_TOPIC, number)
            left = [
                key
                for header, data in self.disk.logs[STAGED_TOPIC, number]
                if header.base_offset >= log.log_start_offset
                for key in RecordBatch(data).keys()  # noqa: SIM118 - a column, not a dict
            ]
            assert not any(isinstance(decode(key), StagedKey) for key in left if key != FLOOR_KEY)
        await coordinator.stop()

    async def _life(self, broker: CrashingBroker, batch_id: int) -> int:
        """One node from start to end; the batch that the driver is at then."""
        coordinator = TransactionCoordinator(
            broker, SETTINGS, now_ms=lambda: self.clock_ms, steady_ms=lambda: self.clock_ms
        )
        progress = [batch_id]
        started = asyncio.Event()
        driver = asyncio.create_task(self._drive(coordinator, progress, started))
        death = asyncio.create_task(broker.dead.wait())
        janitor = asyncio.create_task(self._run_housekeeping(coordinator, started))
        await asyncio.wait((driver, death), return_when=asyncio.FIRST_COMPLETED)
        if not death.done():
            driver.result()
        for task in (driver, death, janitor):
            task.cancel()
        await asyncio.gather(driver, death, janitor, return_exceptions=True)
        await coordinator.stop()
        return progress[0]

    async def _run_housekeeping(
        self, coordinator: TransactionCoordinator, started: asyncio.Event
    ) -> None:
        """Time goes by, and space is freed, whatever else is going on."""
        await started.wait()
        while True:
            for _ in range(self.dice.randint(1, 40)):
                await asyncio.sleep(0)
            self.clock_ms += self.dice.choice([1, 1, 1, 100, 400])
            with suppress(Crashed, LakeMQError):
                await coordinator.tick()
                await coordinator.free()

    async def _drive(
        self, coordinator: TransactionCoordinator, progress: list[int], started: asyncio.Event
    ) -> None:
        with suppress(Crashed):
            await coordinator.start()
            started.set()
            coordinator.register_participant("tally", Tally(self.effects))
            opened = await self._retry(lambda: coordinator.open(self.owner, principal=ANONYMOUS))
            while True:
                if opened.last_batch_id >= progress[0]:
                    progress[0] = opened.last_batch_id + 1
                if progress[0] >= BATCHES:
                    return
                try:
                    await self._batch(coordinator, opened, progress[0])
                    opened = OpenedOwner(opened.epoch, progress[0])
                except (TransactionAborted, ProducerFenced, BatchCommitted, UnknownTransaction):
                    opened = await self._retry(
                        lambda: coordinator.open(self.owner, principal=ANONYMOUS)
                    )

    async def _retry(self, call):  # type: ignore[no-untyped-def]
        while True:
            try:
                return await call()
            except LakeMQError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(0)

    async def _batch(
        self, coordinator: TransactionCoordinator, opened: OpenedOwner, batch_id: int
    ) -> None:
        self.tries += 1
        winners, records = [], []
        for task in range(self.dice.randint(0, 3)):
            for attempt in range(self.dice.randint(1, 2)):
                staged = await self._attempt(coordinator, opened, batch_id, task, attempt)
            winners.append(Winner(task, attempt, len(staged)))
            records += staged
        name = b"%d/%d" % (batch_id, self.tries)
        self.asked.setdefault(batch_id, []).append([*records, (("effect", 0), name)])
        answer = await self._retry(
            lambda: coordinator.commit(
                self.owner,
                opened.epoch,
                batch_id,
                winners,
                principal=ANONYMOUS,
                effects=[Effect("tally", name)],
            )
        )
        assert answer.outcome is not CommitOutcome.OLDER
        assert answer.applied
        assert self.visible() >= {value for place, value in records}
        self.committed[batch_id] = [*records, (("effect", 0), name)]

    async def _attempt(
        self,
        coordinator: TransactionCoordinator,
        opened: OpenedOwner,
        batch_id: int,
        task: int,
        attempt: int,
    ) -> list[tuple[tuple[str, int], bytes]]:
        records = []
        for number in range(self.dice.randint(0, 8)):
            place = self.dice.choice(TARGETS)
            value = b"%d/%d/%d/%d/%d" % (batch_id, self.tries, task, attempt, number)
            records.append((place, value))
        at = StagedBatchId(self.owner, opened.epoch, batch_id, task, attempt, 0)

        async def stage_all() -> None:
            futures = [
                coordinator.stage(
                    at._replace(number=number),
                    *place,
                    encode(Columns([value])),
                    principal=ANONYMOUS,
                )
                for number, (place, value) in enumerate(records)
            ]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

        await self._retry(stage_all)
        return records

    def visible(self) -> set[bytes]:
        return {value for place in TARGETS for value in self.disk.records(*place)}

    def check(self) -> None:
        """Of every batch one try's winners are there, whole, once, in order; nothing else."""
        there = {place: self.disk.records(*place) for place in TARGETS}
        chosen: list[list[tuple[tuple[str, int], bytes]]] = []
        for batch_id in range(BATCHES):
            found = [records for records in self.asked[batch_id] if records[-1][1] in self.effects]
            assert len(found) == 1, f"batch {batch_id}: {len(found)} tries took effect"
            if batch_id in self.committed:
                assert found[0] == self.committed[batch_id]
            chosen += found
        for place in TARGETS:
            wanted = [value for records in chosen for at, value in records if at == place]
            assert there[place] == wanted


async def test_commits_appear_once_and_whole_whatever_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners, "_PAUSE_FIRST_MS", 0)
    crashes = 0
    for seed in SEEDS:
        run = Run(seed)
        try:
            async with asyncio.timeout(20):
                await run.go()
        except BaseException:
            print(f"LAKEMQ_SEED={seed} repeats this")
            raise
        crashes += run.crashes
    assert crashes > 3 * len(SEEDS), "the nodes hardly ever crashed"
