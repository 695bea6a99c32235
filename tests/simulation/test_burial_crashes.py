"""Goal: a record that is rejected becomes a dead letter once, at whatever step of the write the
broker ends, and however often it does.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from lakemq.broker_core.api.queues.types import QueueSettings, Settlement
from lakemq.broker_core.api.records.batch import encode, read_header
from lakemq.broker_core.api.types import Acks, Columns, TopicConfig, TopicInfo
from lakemq.broker_core.queues.dead_letters import DeadLetterWriter
from lakemq.broker_core.queues.partition_runtime import QueuePartitionRuntime
from lakemq.broker_core.queues.partition_state import QueuePartitionState, fresh
from lakemq.broker_core.queues.snapshot import Snapshot, decode_snapshot, encode_snapshot
from tests.support.node.crashing_broker import Crashed, CrashingBroker, Disk

JOBS = [b"job %d" % number for number in range(130)]
"""More than one batch of dead letters takes."""
SETTINGS = QueueSettings(dead_letter="dead")
NEVER = 1 << 30


class Life:
    """The queue on one node, from its start until it ends."""

    def __init__(self, disk: Disk, kept: list[bytes], dice: random.Random, crash_at: int) -> None:
        self.broker = CrashingBroker(disk, dice, crash_at, fail_rate=0.0)
        self.kept = kept
        state = QueuePartitionState(SETTINGS, decode_snapshot(kept[-1]))
        self.partition = QueuePartitionRuntime(
            0, state, self.broker.partition("jobs", 0), self._keep, topic="jobs", window_max=1000
        )
        broker: Any = self.broker
        self.writer = DeadLetterWriter(broker, self.partition, "g", "jobs", lambda: None)

    async def _keep(self, snapshot: Snapshot) -> None:
        await self.broker.a_while()
        self.broker.step()
        self.kept.append(encode_snapshot(snapshot))
        await self.broker.a_while()

    async def reject_everything(self) -> None:
        state = self.partition.state
        await self.partition.fill(len(JOBS))
        for each in state.acquire(1, len(JOBS), 0):
            state.settle(1, each.offset, Settlement.REJECT, 0)
        await self.partition.persisted()

    async def write_dead_letters(self) -> None:
        """Until all is done, or the node has ended."""
        await self.partition.restore()
        self.writer.start_if_needed()
        writing = self.writer._task
        death = asyncio.ensure_future(self.broker.dead.wait())
        if writing is not None:
            await asyncio.wait((writing, death), return_when=asyncio.FIRST_COMPLETED)
        for task in (writing, death, self.partition._writer):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, Crashed):
                    await task


async def stored_jobs(disk: Disk) -> None:
    disk.topics["jobs"] = TopicInfo("jobs", "ab" * 16, 1, TopicConfig())
    batch = encode(Columns(JOBS))
    broker = CrashingBroker(disk, random.Random(0), NEVER, 0.0)
    await broker.partition("jobs", 0).append(batch, read_header(batch), Acks.LEADER)


async def whole_run(seed: int, crash_at: int) -> int:
    """How many steps the first node took until it ended or was done."""
    dice = random.Random(seed)
    disk, kept = Disk(), [encode_snapshot(fresh("ab" * 16, 0))]
    await stored_jobs(disk)
    await Life(disk, kept, dice, NEVER).reject_everything()
    first = Life(disk, kept, dice, crash_at)
    await first.write_dead_letters()
    for _ in range(dice.randint(0, 3)):
        await Life(disk, kept, dice, dice.randint(1, 8)).write_dead_letters()
    last = Life(disk, kept, dice, NEVER)
    await last.write_dead_letters()
    assert disk.records("dead", 0) == JOBS, f"seed {seed}, crash at step {crash_at}"
    assert decode_snapshot(kept[-1]) == Snapshot("ab" * 16, len(JOBS))
    return first.broker.steps


@pytest.mark.parametrize("seed", range(10))
async def test_each_dead_letter_is_there_once_whenever_the_broker_ends(seed: int) -> None:
    steps = await whole_run(seed, NEVER)
    assert steps > 5
    for crash_at in range(1, steps + 1):
        await whole_run(seed, crash_at)
