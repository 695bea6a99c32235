"""Goal: a broker that is killed (SIGKILL) again and again delivers every scheduled record exactly
once and not before its time, and nothing that was cancelled.

Method: a broker on a fixed port is killed at random moments while a client schedules and cancels
records that are due all through. The seed is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess, ports_kept

RECORDS = int(os.environ.get("LAKEMQ_KILL_RECORDS", "200"))
KILLS = int(os.environ.get("LAKEMQ_KILLS", "2"))


@pytest.mark.fault
async def test_scheduled_records_appear_once(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    node = NodeProcess(tmp_path, ports_kept("native")).start()
    cancelled: set[int] = set()
    unknown: set[int] = set()
    due: dict[int, tuple[int, int]] = {}
    try:
        async with lakemq.Client(node.native, timeout_s=100) as client:
            await client.create_topic("t", partitions=2)
            chaos = asyncio.create_task(kill_again_and_again(node, dice))
            number = 0
            while number < RECORDS or not chaos.done():
                delay = timedelta(milliseconds=dice.randint(0, 4000))
                name = f"id-{number}"
                asked_ms = int(time.time() * 1000)
                told = await client.schedules.send(
                    "t", b"%d" % number, delay=delay, schedule_id=name, partition=number % 2
                )
                due[number] = (asked_ms + delay // timedelta(milliseconds=1), told.deliver_at_ms)
                if dice.random() < 0.2:
                    try:
                        await client.schedules.cancel(name)
                        cancelled.add(number)
                    except lakemq.UnknownSchedule:  # delivered, or a try without answer did it
                        unknown.add(number)
                number += 1
                await asyncio.sleep(0.01)
            await chaos
            deadline = time.monotonic() + 60
            while True:
                found = [each async for each in client.consume("t")]
                counted = Counter(int(each.value or b"") for each in found)
                missing = set(due) - counted.keys() - cancelled - unknown
                if not missing or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.1)
            seen_ms = time.time() * 1000
    finally:
        node.kill()
    assert not missing
    assert {each: count for each, count in counted.items() if count > 1} == {}
    assert not counted.keys() & cancelled
    for each in found:
        first_ms, told_ms = due[int(each.value or b"")]
        # A try that was repeated after its record was delivered is told when that was.
        assert first_ms <= each.timestamp_ms <= told_ms <= seen_ms


async def kill_again_and_again(node: NodeProcess, dice: random.Random) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(0.3 + dice.random())
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
