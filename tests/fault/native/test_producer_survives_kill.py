"""Goal: an idempotent producer and a broker that is killed again and again: every acknowledged
record is stored, none twice, order per partition kept.

Method: a broker on fixed ports is killed (SIGKILL) at random moments while a producer sends
numbered records; the producer's retries must hide it all. The seed is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

import lakemq
from tests.support.node.node import NodeProcess, ports_kept

RECORDS = 2000
KILLS = int(os.environ.get("LAKEMQ_KILLS", "2"))


@pytest.mark.fault
async def test_no_loss_no_duplicate_order_kept(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    node = NodeProcess(tmp_path, ports_kept("native")).start()
    try:
        async with lakemq.Client(node.native, timeout_s=100) as client:
            await client.create_topic("t", partitions=2)
            async with await client.producer(batch_max_bytes=3000) as producer:
                chaos = asyncio.create_task(kill_again_and_again(node, dice))
                futures = []
                number = 0
                while number < RECORDS or not chaos.done():
                    record = lakemq.NewRecord(b"%d" % number, key=b"k%d" % (number % 5))
                    futures.append(await producer.enqueue("t", record))
                    if number % 20 == 0:
                        await asyncio.sleep(dice.random() * 0.05)
                    number += 1
                await chaos
                await producer.flush()
                placed = [future.result() for future in futures]
            stored: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
            for partition in (0, 1):
                async for got in client.consume("t", partition=partition):
                    stored[partition].append((int(got.value or b""), got.offset))
    finally:
        node.kill()
    numbers = sorted(number for each in stored.values() for number, _ in each)
    assert numbers == list(range(len(placed)))
    for partition, found in stored.items():
        assert found == sorted(found), f"partition {partition} is out of order"
        assert all(
            (placed[number].partition, placed[number].offset) == (partition, offset)
            for number, offset in found
        )


async def kill_again_and_again(node: NodeProcess, dice: random.Random) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(0.2 + dice.random())
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
