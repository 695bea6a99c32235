"""Goal: commits that are under way, also over a start, are counted."""

from __future__ import annotations

import asyncio
import random

import pytest

from lakemq.broker_core.api.records.batch import encode
from lakemq.broker_core.api.transactions.types import Owner, StagedBatchId, Winner
from lakemq.broker_core.api.types import ANONYMOUS, AppendResult, Columns, TopicInfo
from lakemq.broker_core.configuration.settings import TransactionSettings
from lakemq.broker_core.transactions.coordinator import TransactionCoordinator
from tests.support.node.crashing_broker import CrashingBroker, Disk

OWNER = Owner("transaction", "w")


def broker_of(disk: Disk) -> CrashingBroker:
    return CrashingBroker(disk, random.Random(1), 10**9, 0.0)


async def test_a_commit_that_is_not_applied_is_taken_up_by_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(topics={"t": TopicInfo("t", "1" * 32, 1)})
    first = TransactionCoordinator(broker_of(disk), TransactionSettings(commit_wait_ms=100))
    # The topic takes no append: the commit is decided, and goes on in the background.
    stuck: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    log = first._broker.partition("t", 0)
    monkeypatch.setattr(log, "append", lambda *_: stuck)
    await first.start()
    opened = await first.open(OWNER, principal=ANONYMOUS)
    place = StagedBatchId(OWNER, opened.epoch, 0, 0, 0, 0)
    await first.stage(place, "t", 0, encode(Columns([b"x"])), principal=ANONYMOUS)
    answer = await first.commit(OWNER, opened.epoch, 0, [Winner(0, 0, 1)], principal=ANONYMOUS)
    assert not answer.applied
    assert (first.counters.applying, first.counters.resumed) == (1, 0)
    await first.stop()

    second = TransactionCoordinator(broker_of(disk), TransactionSettings())
    await second.start()
    assert (second.counters.applying, second.counters.resumed) == (1, 1)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert second.counters.applying == 0
    assert second.counters.applied_batches == 1
    assert disk.records("t", 0) == [b"x"]
    await second.stop()
