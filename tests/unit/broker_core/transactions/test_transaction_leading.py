"""Goal: only who coordinates an owner stages and commits, and only who leads a partition schedules
for it; others name the leader."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lakemq.broker_core.api.errors import NotLeader, StorageFull
from lakemq.broker_core.api.leadership import leads
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.scheduling.schedules import ScheduleAsked
from lakemq.broker_core.api.transactions.types import Owner, StagedBatchId
from lakemq.broker_core.api.types import ANONYMOUS, Columns, Leadership, TopicInfo
from lakemq.broker_core.configuration.settings import ScheduleSettings, TransactionSettings
from lakemq.broker_core.scheduling.scheduler import Scheduler
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from lakemq.broker_core.transactions.formats import STAGED_TOPIC
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


async def test_schedules_for_another_nodes_partition_are_refused(broker: CrashingBroker) -> None:
    scheduler = Scheduler(broker, ScheduleSettings(), lambda: 0)
    with pytest.raises(NotLeader, match="is led by other"):
        await scheduler.schedule(ScheduleAsked("i", "t", 0, BATCH, 0), principal=ANONYMOUS)


async def test_a_schedule_waits_when_its_leader_moves_while_it_is_decided(
    broker: CrashingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be marked as delivered without its records."""
    moved = broker.disk.topics["t"]
    broker.disk.topics["t"] = topic(Leadership("simulated", 3))
    scheduler = Scheduler(broker, ScheduleSettings(), lambda: 0)
    await scheduler.schedule(ScheduleAsked("i", "t", 0, BATCH, 0), principal=ANONYMOUS)
    due = scheduler._queue.find("i")
    assert due is not None
    owned = scheduler._owned[due.log_partition]
    allocate = broker.allocate_producer_id

    async def move(*arguments: object) -> int:
        broker.disk.topics["t"] = moved
        return await allocate(*arguments)

    monkeypatch.setattr(broker, "allocate_producer_id", move)
    with pytest.raises(NotLeader, match="is led by other"):
        await scheduler._decide(due.log_partition, owned, [due])
    assert not owned.delivering


async def test_a_schedule_whose_leader_is_missing_waits_though_another_delivery_fails(
    broker: CrashingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = (Leadership("simulated", 3),) * 9
    broker.disk.topics["t"] = TopicInfo("t", "0" * 32, 9, leaders=leaders)
    scheduler = Scheduler(broker, ScheduleSettings(), lambda: 0)
    for number in range(9):
        asked = ScheduleAsked(str(number), "t", number, BATCH, 0)
        await scheduler.schedule(asked, principal=ANONYMOUS)
    home, queue = next(
        (number, scheduler._queue[number])
        for number in range(9)
        if len(scheduler._queue[number]) > 1
    )
    away, *there = due = queue.take(0, 9)
    ready = scheduler._is_ready
    monkeypatch.setattr(scheduler, "_is_ready", lambda each: each is not away and ready(each))

    async def fail(*arguments: object, **options: object) -> None:
        raise StorageFull("the disk is full")

    monkeypatch.setattr(scheduler, "_finish", fail)
    with pytest.raises(StorageFull):
        await scheduler._deliver(home, scheduler._owned[home], due)
    assert scheduler._owned[home].delivering == {each.key for each in there}
    assert queue.take(0, 9) == [away]


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
