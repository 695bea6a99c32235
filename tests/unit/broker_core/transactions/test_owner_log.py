"""Goal: what a coordinator has written is all that the next one needs, and no more than that is
kept; a node's owners of a former build are taken over.
"""

from __future__ import annotations

import random

import pytest

from lakemq.broker_core.api.errors import TransactionAborted
from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.state.state_topic import StateTopic
from lakemq.broker_core.api.transactions.types import CommitOutcome, Owner, StagedBatchId, Winner
from lakemq.broker_core.api.types import ANONYMOUS, Columns, TopicInfo
from lakemq.broker_core.configuration.settings import TransactionSettings
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from lakemq.broker_core.transactions.formats import STAGED_TOPIC, StagedKey, encode_staged_key
from lakemq.broker_core.transactions.logs import OwnerStates
from lakemq.broker_core.transactions.owner_log import OwnerLog
from lakemq.broker_core.transactions.state import (
    CommitTarget,
    OwnerState,
    PendingCommit,
    StagedRef,
)
from tests.support.node.crashing_broker import CrashingBroker, Disk

OWNER = Owner("sink", "s")
TOPIC_ID = "0" * 32


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.topics["t"] = TopicInfo("t", TOPIC_ID, 1)
    return disk


def broker_of(disk: Disk) -> CrashingBroker:
    return CrashingBroker(disk, random.Random(1), 10**9, 0.0)


async def started(disk: Disk) -> TransactionCoordinator:
    coordinator = TransactionCoordinator(broker_of(disk), TransactionSettings())
    await coordinator.start()
    return coordinator


async def stage(
    coordinator: TransactionCoordinator, owner: Owner, epoch: int, batch_id: int, *values: bytes
) -> None:
    for number, value in enumerate(values):
        place = StagedBatchId(owner, epoch, batch_id, 0, 0, number)
        await coordinator.stage(place, "t", 0, encode(Columns([value])), principal=ANONYMOUS)


async def commit(
    coordinator: TransactionCoordinator, owner: Owner, epoch: int, batch_id: int, batches: int
) -> CommitOutcome:
    answer = await coordinator.commit(
        owner, epoch, batch_id, [Winner(0, 0, batches)], principal=ANONYMOUS
    )
    assert answer.applied
    return answer.outcome


async def test_the_next_coordinator_goes_on_with_what_is_staged_and_decided(disk: Disk) -> None:
    first = await started(disk)
    opened = await first.open(OWNER, principal=ANONYMOUS)
    await stage(first, OWNER, opened.epoch, 0, b"a")
    await commit(first, OWNER, opened.epoch, 0, 1)
    await stage(first, OWNER, opened.epoch, 1, b"b", b"c")
    await first.stop()
    second = await started(disk)
    assert await commit(second, OWNER, opened.epoch, 0, 1) is CommitOutcome.ALREADY_COMMITTED
    assert await commit(second, OWNER, opened.epoch, 1, 2) is CommitOutcome.COMMITTED
    await second.stop()
    assert disk.records("t", 0) == [b"a", b"b", b"c"]


async def test_states_survive_when_the_log_below_them_is_deleted(disk: Disk) -> None:
    first = await started(disk)
    owners = [Owner("transaction", f"w{number}") for number in range(20)]
    for owner in owners:
        epoch = (await first.open(owner, principal=ANONYMOUS)).epoch
        await stage(first, owner, epoch, 0, b"x", b"y")
        await commit(first, owner, epoch, 0, 2)
    for _ in range(2):
        await first.free()
    log = OwnerLog(broker_of(disk))
    assert all(disk.starts.get((STAGED_TOPIC, number), 0) > 0 for number in log.partitions())
    await first.stop()
    second = await started(disk)
    assert {each.owner: each.last_batch_id for each in second.describe(principal=ANONYMOUS)} == {
        owner: 0 for owner in owners
    }
    await second.stop()


async def test_what_lies_below_the_floor_is_staged_for_nobody(disk: Disk) -> None:
    """The former coordinator aborted it and freed the disk; this replica still has it."""
    first = await started(disk)
    opened = await first.open(OWNER, principal=ANONYMOUS)
    await stage(first, OWNER, opened.epoch, 0, b"a")
    await first.abort(OWNER, opened.epoch, 0, principal=ANONYMOUS)
    for _ in range(2):
        await first.free()
    await first.stop()
    assert any(disk.starts.values())
    disk.starts.clear()
    second = await started(disk)
    with pytest.raises(TransactionAborted, match="0 batches staged"):
        await commit(second, OWNER, opened.epoch, 0, 1)
    await second.stop()


async def former_build(disk: Disk, owner: Owner, state: OwnerState) -> int:
    """What it left behind: a state, and a batch in a partition that is not its owner's; where."""
    broker = broker_of(disk)
    states = OwnerStates(broker)
    await states.ensure()
    await states.append(owner, state)
    log = OwnerLog(broker)
    await log.ensure()
    home = log.partition_of(owner)
    assert home is not None
    number = (home + 1) % 4
    key = StagedKey(StagedBatchId(owner, state.epoch, 5, 0, 0, 0), "t", TOPIC_ID, 0, 1, 7)
    topic = StateTopic(broker, STAGED_TOPIC, large_values=True, compacted=False)
    await topic.put(encode_staged_key(key), encode(Columns([b"old"])), partition=number)
    return number


async def test_a_decided_commit_of_a_former_build_is_applied(disk: Disk) -> None:
    log = OwnerLog(broker_of(disk))
    await log.ensure()
    home = log.partition_of(OWNER)
    assert home is not None
    ref = StagedRef((home + 1) % 4, 0, 1)
    pending = PendingCommit((CommitTarget("t", TOPIC_ID, 0, 0, (ref,)),))
    state = OwnerState(3, 5, 77, 2, 60_000, 0, pending)
    assert await former_build(disk, OWNER, state) == ref.log_partition
    first = await started(disk)
    opened = await first.open(OWNER, principal=ANONYMOUS)
    assert (opened.epoch, opened.last_batch_id) == (4, 5)
    assert disk.records("t", 0) == [b"old"]
    await first.stop()
    assert await OwnerStates(broker_of(disk)).load() == {}, "it would come back when it is deleted"
    second = await started(disk)
    await second.delete(OWNER, principal=ANONYMOUS)
    await second.stop()
    third = await started(disk)
    assert third.describe(principal=ANONYMOUS) == []
    await third.stop()


async def test_what_a_former_build_has_not_decided_is_aborted(disk: Disk) -> None:
    await former_build(disk, OWNER, OwnerState(3, 4, -1, 0, 60_000, 0))
    first = await started(disk)
    with pytest.raises(TransactionAborted):
        await commit(first, OWNER, 3, 5, 1)
    await stage(first, OWNER, 3, 5, b"new")
    await commit(first, OWNER, 3, 5, 1)
    await first.stop()
    assert disk.records("t", 0) == [b"new"]
