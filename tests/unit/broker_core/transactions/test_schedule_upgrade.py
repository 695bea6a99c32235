"""Goal: what a build from before had scheduled and decided, in topics of a node's own, is delivered
once by this one."""

from __future__ import annotations

import asyncio
import random

import pytest

from lakemq.broker_core.api.records.batch import ProducerStamp, encode, read_header
from lakemq.broker_core.api.transactions.types import Owner
from lakemq.broker_core.api.types import Acks, Columns, TopicInfo
from lakemq.broker_core.configuration.settings import ScheduleSettings
from lakemq.broker_core.scheduling.formats import StoredSchedule
from lakemq.broker_core.scheduling.log import ScheduleLog
from lakemq.broker_core.scheduling.scheduler import Scheduler
from lakemq.broker_core.transactions import state as states
from lakemq.broker_core.transactions.formats import SCHEDULER
from lakemq.broker_core.transactions.logs import OwnerStates
from lakemq.broker_core.transactions.state import OwnerState, PendingCommit
from tests.support.node.crashing_broker import CrashingBroker, Disk

TOPIC = TopicInfo("t", "ab" * 16, 1)
NOW_MS = 1_000


@pytest.mark.parametrize("appended", [False, True], ids=["decided", "appended"])
async def test_a_decision_of_an_older_build_is_carried_out_once(appended: bool) -> None:
    disk = Disk(topics={"t": TOPIC})
    older = CrashingBroker(disk, random.Random(1), 10**9, 0.0)
    log, former = ScheduleLog(older), OwnerStates(older)
    await log.ensure()
    await former.ensure()
    waiting = []
    for name, due_ms in (("due", 10), ("later", 10_000)):
        stored = StoredSchedule(due_ms, False, "t", TOPIC.topic_id, 0, 1, encode(Columns([b"x"])))
        found, written = log.append_batch(name, stored)
        await written
        waiting.append(found)
    due = waiting[0]
    targets = states.targets_of([("t", TOPIC.topic_id, 0, due.entry)], {("t", 0): 0})
    decided = states.committed(OwnerState(), 0, PendingCommit(targets), 7, 1)
    owner = Owner(SCHEDULER, str(due.log_partition))
    await former.append(owner, decided)
    if appended:
        batch = encode(
            Columns([b"x"]), now_ms=10,
            producer=ProducerStamp(decided.producer_id, decided.producer_epoch, 0),
        )  # fmt: skip
        await older.partition("t", 0).append(batch, read_header(batch), Acks.LEADER)

    broker = CrashingBroker(disk, random.Random(2), 10**9, 0.0)
    scheduler = Scheduler(broker, ScheduleSettings(), lambda: NOW_MS)
    await scheduler.start()
    async with asyncio.timeout(10):
        while scheduler.counters.waiting > 1:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)
    assert disk.records("t", 0) == [b"x"]
    assert owner not in await OwnerStates(broker).load()
    assert scheduler._queue.ended_ms("due") == NOW_MS
    await scheduler.stop()

    # What it decides next continues the numbers of the older one: a producer id is used once.
    again = CrashingBroker(disk, random.Random(3), 10**9, 0.0)
    later = Scheduler(again, ScheduleSettings(), lambda: 20_000)
    await later.start()
    async with asyncio.timeout(10):
        while later.counters.waiting:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)
    assert disk.records("t", 0) == [b"x", b"x"]
    last = disk.logs["t", 0][-1][0]
    assert (last.producer_id, last.producer_epoch) == (7, decided.producer_epoch + 1)
    await later.stop()
