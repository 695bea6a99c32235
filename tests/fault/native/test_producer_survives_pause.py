"""Goal: a broker that stands still (SIGSTOP) or a machine that is busy costs a producer nothing but
time: no loss, no duplicate, order kept; single records, columns and Arrow alike.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import lakemq
from tests.support.node.node import NodeProcess, ports_kept

KILLS = int(os.environ.get("LAKEMQ_KILLS", "2"))


@asynccontextmanager
async def on_fixed_port(tmp_path: Path) -> AsyncIterator[NodeProcess]:
    node = NodeProcess(tmp_path, ports_kept("native"))
    await asyncio.to_thread(node.start)
    try:
        yield node
    finally:
        node.kill()


async def stored(client: lakemq.Client, partition: int) -> list[int]:
    return [int(each.value or b"") async for each in client.consume("t", partition=partition)]


@pytest.mark.fault
async def test_a_broker_that_stands_still_costs_only_time(tmp_path: Path) -> None:
    async with on_fixed_port(tmp_path) as node, lakemq.Client(node.native, timeout_s=100) as client:
        await client.create_topic("t", partitions=1)
        async with await client.producer(batch_max_bytes=2000) as producer:
            acks = []
            for number in range(1200):
                if number % 400 == 200:
                    os.kill(node.pid, signal.SIGSTOP)
                    asyncio.get_running_loop().call_later(1.2, os.kill, node.pid, signal.SIGCONT)
                acks.append(await producer.enqueue("t", lakemq.NewRecord(b"%d" % number)))
                if number % 50 == 0:
                    await asyncio.sleep(0.02)
            await producer.flush()
        assert [ack.result().offset for ack in acks] == list(range(1200))
        assert await stored(client, 0) == list(range(1200))


@pytest.mark.fault
async def test_columns_and_records_survive_kills_on_a_busy_machine(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    burners = burn()
    try:
        async with (
            on_fixed_port(tmp_path) as node,
            lakemq.Client(node.native, timeout_s=100) as client,
        ):
            await client.create_topic("t", partitions=1)
            async with await client.producer(batch_max_bytes=4000) as producer:
                chaos = asyncio.create_task(kill(node, dice))
                number = 0
                while not chaos.done() or number < 2000:
                    number = await send_some(producer, number, dice)
                    await asyncio.sleep(dice.random() * 0.05)
                await chaos
                await producer.flush()
            assert producer.counters.reconnects >= KILLS
            assert producer.counters.records_taken == number
            assert await stored(client, 0) == list(range(number))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def burn() -> list[subprocess.Popen[bytes]]:
    """As many processes that only burn time as there are CPUs."""
    command = [sys.executable, "-c", "while True: pass"]
    return [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]


async def send_some(producer: lakemq.Producer, first: int, dice: random.Random) -> int:
    """Single records, columns or an Arrow table; returns the next number."""
    numbers = range(first, first + dice.randrange(1, 60))
    values = [b"%d" % number for number in numbers]
    kind = dice.randrange(3)
    if kind == 0:
        for value in values:
            await producer.enqueue("t", lakemq.NewRecord(value))
    elif kind == 1:
        await producer.send_batch("t", lakemq.Columns(values))
    else:
        await producer.send_arrow("t", pa.table({"value": pa.array(values, pa.binary())}))
    return numbers.stop


async def kill(node: NodeProcess, dice: random.Random) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(0.3 + dice.random())
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
