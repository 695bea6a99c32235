"""Goal: only who coordinates an owner stages and commits, and only who leads a partition schedules
for it; others name the leader."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from lakemq.broker_core.api.errors import (
    LakeMQError,
    NotLeader,
    StorageFull,
    Unavailable,
    UnknownSchedule,
)
from lakemq.broker_core.api.leadership import leads
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.scheduling.schedules import ScheduleAsked
from lakemq.broker_core.api.transactions.types import Owner, StagedBatchId
from lakemq.broker_core.api.types import ANONYMOUS, AppendResult, Columns, Leadership, TopicInfo
from lakemq.broker_core.configuration.settings import ScheduleSettings, TransactionSettings
from lakemq.broker_core.scheduling.formats import STATE_KEY
from lakemq.broker_core.scheduling.log import ScheduleLog
from lakemq.broker_core.scheduling.scheduler import Scheduler
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from lakemq.broker_core.transactions.formats import SCHEDULES_TOPIC, STAGED_TOPIC
from lakemq.broker_core.transactions.owner_log import OwnerLog
from tests.support.node.crashing_broker import CrashingBroker, Disk

BATCH = encode(Columns([b"x"]))
OWNER = Owner("sink", "s")


def topic(*leaders: Leadership) -> TopicInfo:
    return TopicInfo("t", "0" * 32, 1, leaders=leaders)


@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        (Leadership("me", 1), True),
        (Leadership("you", 1, ("me", "you")), False),
        (Leadership(None, 1, ("me",)), True),
        (Leadership(None, 1, ("you",)), False),
        (Leadership(None, 1, ("me", "you")), False),
        (Leadership(None, 0), False),
    ],
)
def test_who_leads(lead: Leadership, expected: bool) -> None:
    assert leads("me", topic(lead), 0) is expected


def test_nobody_leads_a_partition_that_the_catalog_has_not_placed() -> None:
    assert not leads("me", topic(), 3)


@pytest.fixture
def broker() -> CrashingBroker:
    broker = CrashingBroker(Disk(), random.Random(1), 10**9, 0.0)
    broker.disk.topics["t"] = topic(Leadership("other", 4))
    return broker


async def test_records_for_another_nodes_partition_are_staged(broker: CrashingBroker) -> None:
    coordinator = TransactionCoordinator(broker, TransactionSettings())
    opened = await coordinator.open(OWNER, principal=ANONYMOUS)
    place = StagedBatchId(OWNER, opened.epoch, 0, 0, 0, 0)
    assert await coordinator.stage(place, "t", 0, BATCH, principal=ANONYMOUS) is False
    await coordinator.stop()


async def test_a_partition_of_schedules_has_one_node(broker: CrashingBroker) -> None:
    await ScheduleLog(broker).ensure()
    info = broker.disk.topics[SCHEDULES_TOPIC]
    elsewhere = (Leadership("other", 7),) * info.partitions
    broker.disk.topics[SCHEDULES_TOPIC] = replace(info, leaders=elsewhere)
    scheduler = Scheduler(broker, ScheduleSettings(), lambda: 0)
    await scheduler.start()
    with pytest.raises(NotLeader, match="is led by other") as told:
        await scheduler.schedule(ScheduleAsked("i", "t", 0, BATCH, 0), principal=ANONYMOUS)
    assert (told.value.leader, told.value.epoch) == ("other", 7)
    assert scheduler.coordinators() == ["other"]
    with pytest.raises(UnknownSchedule):
        await scheduler.cancel("i", principal=ANONYMOUS)
    broker.disk.topics[SCHEDULES_TOPIC] = replace(info, leaders=(Leadership(None, 8, ("x",)),) * 4)
    with pytest.raises(Unavailable, match="no node leads _lakemq_delayed/0"):
        await scheduler.cancel("i", principal=ANONYMOUS)


async def scheduled(broker: CrashingBroker) -> tuple[Scheduler, int]:
    """With a schedule for each of nine partitions, due at 1; and a partition of the topic of
    schedules that keeps several."""
    leaders = (Leadership("simulated", 3),) * 9
    broker.disk.topics["t"] = TopicInfo("t", "0" * 32, 9, leaders=leaders)
    scheduler = Scheduler(broker, ScheduleSettings(), lambda: 0)
    await scheduler.start()
    for number in range(9):
        asked = ScheduleAsked(str(number), "t", number, BATCH, 1)
        await scheduler.schedule(asked, principal=ANONYMOUS)
    home = next(each for each in range(4) if len(scheduler._queue[each]) > 1)
    await scheduler._deliveries[home].stop()
    return scheduler, home


@pytest.mark.parametrize(
    ("lead", "ready"),
    [(Leadership("other", 4), True), (Leadership(None, 4, ("other",)), False)],
    ids=["led", "without"],
)
async def test_schedules_of_partitions_without_a_leader_wait(
    broker: CrashingBroker, lead: Leadership, ready: bool
) -> None:
    """They would hold up all others."""
    scheduler, home = await scheduled(broker)
    away, *others = due = scheduler._queue[home].take(1, 9)
    leaders = [Leadership("simulated", 3)] * 9
    leaders[away.partition] = lead
    broker.disk.topics["t"] = replace(broker.disk.topics["t"], leaders=tuple(leaders))
    found = [scheduler._deliveries[home]._is_ready(each) for each in due]
    assert found == [ready, *(True for _ in others)]
    await scheduler.stop()


@pytest.mark.parametrize("error", [NotLeader("elsewhere"), Unavailable("slow")], ids=str)
async def test_what_can_not_be_asked_now_waits_though_another_delivery_fails(
    broker: CrashingBroker, monkeypatch: pytest.MonkeyPatch, error: LakeMQError
) -> None:
    """Else it would be marked as delivered without its records."""
    scheduler, home = await scheduled(broker)
    queue, deliveries = scheduler._queue[home], scheduler._deliveries[home]
    away, *there = due = queue.take(1, 9)
    floor = scheduler._context.targets.floor

    async def asked(topic: str, partition: int) -> int:
        if partition == away.partition:
            raise error
        return await floor(topic, partition)

    async def fail(*arguments: object, **options: object) -> None:
        raise StorageFull("the disk is full")

    monkeypatch.setattr(scheduler._context.targets, "floor", asked)
    monkeypatch.setattr(deliveries, "_finish", fail)
    with pytest.raises(StorageFull):
        await deliveries._deliver(due)
    assert deliveries.owned.delivering == {each.key for each in there}
    assert queue.take(1, 9) == [away]
    await scheduler.stop()


async def test_what_may_be_decided_is_not_cancelled(
    broker: CrashingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append of a decision fails where leadership moves, and is on disk all the same."""
    scheduler, home = await scheduled(broker)
    queue, deliveries = scheduler._queue[home], scheduler._deliveries[home]
    due = queue.take(1, 9)
    write, failures = scheduler._log.topic.write, 0

    async def answer_lost(written: asyncio.Future[AppendResult]) -> AppendResult:
        await written
        raise NotLeader("it has moved")

    def written(entries: Any, **options: Any) -> asyncio.Future[AppendResult]:
        nonlocal failures
        stored = write(entries, **options)
        if STATE_KEY not in entries or failures == 2:
            return stored
        failures += 1
        return asyncio.ensure_future(answer_lost(stored))

    monkeypatch.setattr(scheduler._log.topic, "write", written)
    delivery = asyncio.create_task(deliveries._deliver(due))
    while not failures:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(UnknownSchedule):
        await scheduler.cancel(due[0].key, principal=ANONYMOUS)
    await delivery
    assert failures == 2
    assert queue.take(1, 9) == []
    await scheduler.stop()


async def test_an_owner_has_one_coordinator(broker: CrashingBroker) -> None:
    await OwnerLog(broker).ensure()
    info = broker.disk.topics[STAGED_TOPIC]
    elsewhere = (Leadership("other", 7),) * info.partitions
    broker.disk.topics[STAGED_TOPIC] = replace(info, leaders=elsewhere)
    coordinator = TransactionCoordinator(broker, TransactionSettings())
    place = StagedBatchId(OWNER, 1, 0, 0, 0, 0)
    assert coordinator.coordinator_of(OWNER) == "other"
    for call in (
        lambda: coordinator.open(OWNER, principal=ANONYMOUS),
        lambda: coordinator.commit(OWNER, 1, 0, [], principal=ANONYMOUS),
        lambda: coordinator.abort(OWNER, 1, 0, principal=ANONYMOUS),
        lambda: coordinator.fence(OWNER, principal=ANONYMOUS),
        lambda: coordinator.delete(OWNER, principal=ANONYMOUS),
    ):
        with pytest.raises(NotLeader, match="is led by other") as told:
            await call()
        assert (told.value.leader, told.value.epoch) == ("other", 7)
    with pytest.raises(NotLeader, match="is led by other"):
        coordinator.stage(place, "t", 0, BATCH, principal=ANONYMOUS)
